package redistest

// This file makes the certificates by which a server and its clients trust each other, and starts
// servers that accept only TLS.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLS is what a client needs to trust a server: a certificate authority, and a certificate that it
// issued for localhost and 127.0.0.1. The server presents this certificate. It accepts clients
// without a certificate, unless configured otherwise ("--tls-auth-clients", "yes").
type TLS struct {
	Config   *tls.Config // trusts the authority, and presents the certificate
	CAFile   string      // the authority's certificate, as PEM
	CertFile string      // the certificate, as PEM
	KeyFile  string      // its private key, as PEM in PKCS #8
}

// RealTLS is Real with a server that accepts only TLS. Options, Client and URL are set up for TLS;
// the field TLS has what other clients need.
func RealTLS(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startReal(tb, NewTLS(tb), args)
}

// ClusterTLS is Cluster with nodes that accept only TLS, and also use it among each other.
func ClusterTLS(tb testing.TB, masters int, args ...string) *Nodes {
	tb.Helper()
	nodes := startNodes(tb, masters, NewTLS(tb), args)
	nodes.Ready()
	return nodes
}

// failStart ends a test whose server did not start. It skips a test of TLS if the environment names
// a server without it.
func failStart(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, errNoTLS) && os.Getenv(serverEnv) != "" {
		tb.Skipf("redistest: %v", err)
	}
	tb.Fatalf("redistest: %v", err)
}

// args returns arguments for redis-server, without the port.
func (t *TLS) args() []string {
	if t == nil {
		return nil
	}
	return []string{"--tls-ca-cert-file", t.CAFile, "--tls-cert-file", t.CertFile, "--tls-key-file", t.KeyFile,
		"--tls-auth-clients", "optional", "--tls-cluster", "yes", "--tls-replication", "yes"}
}

// config returns a copy, because a client may change its configuration.
func (t *TLS) config() *tls.Config {
	if t == nil {
		return nil
	}
	return t.Config.Clone()
}

// NewTLS writes an authority and a certificate to files, which are removed when the test ends.
func NewTLS(tb testing.TB) *TLS {
	tb.Helper()
	dir := tb.TempDir()
	t := &TLS{
		CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, "redis.crt"),
		KeyFile: filepath.Join(dir, "redis.key"),
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "redistest authority", Organization: []string{"redistest"}},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	owner := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost", Organization: []string{"redistest"}},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	must := func(err error) {
		if err != nil {
			tb.Fatalf("redistest: certificates: %v", err)
		}
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ownerKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	authorityBytes, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(),
		authorityKey)
	must(err)
	ownerBytes, err := x509.CreateCertificate(rand.Reader, owner, authority, ownerKey.Public(), authorityKey)
	must(err)
	keyBytes, err := x509.MarshalPKCS8PrivateKey(ownerKey)
	must(err)
	for name, block := range map[string]*pem.Block{
		t.CAFile:   {Type: "CERTIFICATE", Bytes: authorityBytes},
		t.CertFile: {Type: "CERTIFICATE", Bytes: ownerBytes},
		t.KeyFile:  {Type: "PRIVATE KEY", Bytes: keyBytes},
	} {
		must(os.WriteFile(name, pem.EncodeToMemory(block), 0o600))
	}
	root, err := x509.ParseCertificate(authorityBytes)
	must(err)
	roots := x509.NewCertPool()
	roots.AddCert(root)
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	must(err)
	t.Config = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return t
}
