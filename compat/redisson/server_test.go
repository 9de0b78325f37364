package redisson_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A server is a redis-server of our own, gone with the test.
type server struct {
	addr string
	port string
}

func startRedis(t *testing.T, args ...string) *server {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	s := &server{addr: addr, port: port}
	s.start(t, append([]string{"--port", port}, args...)...)
	s.waitFor(t, "", "PING")
	return s
}

func (s *server) start(t *testing.T, args ...string) {
	t.Helper()
	folder := t.TempDir()
	args = append(args, "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no", "--logfile", "log")
	cmd := exec.Command("redis-server", args...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("real Redisson needs a real Redis (apt-get install redis-server): %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(folder, "log"))
			t.Logf("log of redis-server on port %s:\n%s", s.port, log[max(0, len(log)-1000):])
		}
	})
}

// waitFor repeats a command until its answer has the part.
func (s *server) waitFor(t *testing.T, part string, command ...string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(25 * time.Millisecond) {
		var c *conn
		if c, err = connect(s.addr); err == nil {
			var answer []string
			answer, err = c.try(command...)
			c.Close()
			// A password is asked for by a server that is up.
			if part == "" && (err == nil || strings.HasPrefix(err.Error(), "NOAUTH")) {
				return
			}
			if err == nil && part != "" && strings.Contains(strings.Join(answer, " "), part) {
				return
			}
		}
	}
	t.Fatalf("%v of %s never said %q: %v", command, s.addr, part, err)
}

func startSentinel(t *testing.T, master *server) *server {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	config := "sentinel monitor main 127.0.0.1 " + master.port + " 1\n"
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", file, "--sentinel", "--port", port, "--bind", "127.0.0.1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	s := &server{addr: addr, port: port}
	s.waitFor(t, master.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
	return s
}

func startTLS(t *testing.T) *server {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	plain := freeAddr(t)
	_, plainPort, _ := net.SplitHostPort(plain)
	folder := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	ok(t, err)
	certFile, keyFile := filepath.Join(folder, "cert"), filepath.Join(folder, "key")
	ok(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600))
	ok(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes}), 0o600))
	s := &server{addr: plain, port: port}
	s.start(t, "--port", plainPort, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
		"--tls-ca-cert-file", certFile, "--tls-auth-clients", "no")
	s.waitFor(t, "", "PING")
	s.addr = addr
	return s
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A conn speaks just enough of Redis's protocol to look at keys.
type conn struct {
	net.Conn
	t      *testing.T
	reader *bufio.Reader
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	c.t = t
	t.Cleanup(func() { c.Close() })
	return c
}

func connect(addr string) (*conn, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	return &conn{Conn: c, reader: bufio.NewReader(c)}, nil
}

// do runs a command; the answer is a list, also where it is a single word.
func (c *conn) do(words ...string) []string {
	c.t.Helper()
	answer, err := c.try(words...)
	if err != nil {
		c.t.Fatalf("%q: %v", words, err)
	}
	return answer
}

func (c *conn) try(words ...string) ([]string, error) {
	var request bytes.Buffer
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := c.Write(request.Bytes()); err != nil {
		return nil, err
	}
	return c.answer()
}

func (c *conn) answer() ([]string, error) {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	switch line[0] {
	case '+', ':':
		return []string{line[1:]}, nil
	case '-':
		return nil, errors.New(line[1:])
	case '$':
		n, err := strconv.Atoi(line[1:])
		if err != nil || n < 0 {
			return nil, err
		}
		data := make([]byte, n+2)
		_, err = io.ReadFull(c.reader, data)
		return []string{string(data[:n])}, err
	case '*':
		n, err := strconv.Atoi(line[1:])
		var all []string
		for ; err == nil && n > 0; n-- {
			var part []string
			part, err = c.answer()
			all = append(all, part...)
		}
		return all, err
	}
	return nil, fmt.Errorf("unknown answer %q", line)
}
