package redistest

// This file records what a real server executes, and parses the output of MONITOR.

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// monitorLimit bounds the wait for a reply, and for the rest of the server's output at the end.
const monitorLimit = 30 * time.Second

// A Command is one that the server executed.
type Command struct {
	Time   time.Time // the server's clock, in microseconds
	DB     int
	Lua    bool     // executed by a script
	Source string   // the client's address, "lua" for a script
	Args   []string // as bytes; the first is the command's name as it was sent
}

// Name returns the command's name in upper case.
func (c Command) Name() string {
	if len(c.Args) == 0 {
		return ""
	}
	return strings.ToUpper(c.Args[0])
}

// Added returns the scores and the members of a ZADD. Another command has none.
func (c Command) Added() iter.Seq2[string, string] {
	return func(yield func(score, member string) bool) {
		if c.Name() != "ZADD" || len(c.Args) < 4 {
			return
		}
		args := c.Args[2+len(c.Args)%2:] // behind NX or XX
		for ; len(args) > 1 && yield(args[0], args[1]); args = args[2:] {
		}
	}
}

// A Recording is a running MONITOR.
type Recording struct {
	tb   testing.TB
	addr string
	tls  *TLS
	conn net.Conn
	keep []func(Command) bool
	end  string        // argument of an ECHO that marks the end of the recording
	done chan struct{} // closed when nothing more is read

	mu       sync.Mutex
	commands []Command
	err      error // why the recording ended before its end; nil when it reached it
}

// Monitor records all commands that the real server at addr executes from now on, in all databases.
// If keep is given, only commands for which all of them return true are held: a long test should
// keep little, since Java clients send the whole text of a script with every call. keep runs in a
// goroutine of its own. Stop ends the recording; a test that does not call it ends it, too.
func Monitor(tb testing.TB, addr string, keep ...func(Command) bool) *Recording {
	tb.Helper()
	return monitor(tb, addr, nil, keep)
}

// Monitor is Monitor for this server, also with TLS.
func (s *Server) Monitor(keep ...func(Command) bool) *Recording {
	s.tb.Helper()
	return monitor(s.tb, s.Addr, s.TLS, keep)
}

func monitor(tb testing.TB, addr string, secure *TLS, keep []func(Command) bool) *Recording {
	tb.Helper()
	conn, err := dial(addr, secure, monitorLimit)
	if err != nil {
		tb.Fatalf("redistest: monitor %s: %v", addr, err)
	}
	tb.Cleanup(func() { _ = conn.Close() }) // closed before, after Stop
	reader := bufio.NewReaderSize(conn, 1<<20)
	if err := ask(conn, reader, "+OK", "MONITOR"); err != nil {
		tb.Fatalf("redistest: monitor %s: %v", addr, err)
	}
	r := &Recording{
		tb: tb, addr: addr, tls: secure, conn: conn, keep: keep, end: "end of recording " + rand.Text(),
		done: make(chan struct{}),
	}
	go r.read(reader)
	return r
}

// Stop ends the recording and returns all that was executed since Monitor returned and until now,
// in the order of execution. Nothing is lost: Stop fails the test when the recording broke off.
func (r *Recording) Stop() []Command {
	r.tb.Helper()
	// MONITOR reports commands in order: after this ECHO, all earlier ones have been reported.
	if err := r.sendEnd(); err != nil {
		r.tb.Fatalf("redistest: end the recording of %s: %v", r.addr, err)
	}
	select {
	case <-r.done:
	case <-time.After(monitorLimit):
		r.tb.Fatalf("redistest: the recording of %s does not end", r.addr)
	}
	_ = r.conn.Close() // all is read
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		r.tb.Fatalf("redistest: the recording of %s broke off after %d commands: %v", r.addr, len(r.commands), r.err)
	}
	return r.commands
}

// Killed returns all recorded commands of a server that has been killed in the meantime. The last
// ones that it executed may be missing.
func (r *Recording) Killed() []Command {
	r.tb.Helper()
	select {
	case <-r.done:
	case <-time.After(monitorLimit):
		r.tb.Fatalf("redistest: the recording of %s goes on: nobody has killed the server", r.addr)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commands
}

func (r *Recording) sendEnd() error {
	select {
	case <-r.done:
		return nil // over already: by an earlier Stop, or broken
	default:
	}
	conn, err := dial(r.addr, r.tls, monitorLimit)
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(conn, bufio.NewReader(conn), "$"+strconv.Itoa(len(r.end)), "ECHO", r.end)
}

// ask sends a command and checks the first line of the reply.
func ask(conn net.Conn, reader *bufio.Reader, want string, args ...string) error {
	if err := conn.SetDeadline(time.Now().Add(monitorLimit)); err != nil {
		return err
	}
	command := fmt.Sprintf("*%d\r\n", len(args))
	for _, arg := range args {
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return err
	}
	got, err := reader.ReadString('\n')
	if err != nil {
		return err
	}
	if got = strings.TrimSpace(got); got != want {
		return fmt.Errorf("%s is answered with %q", args[0], got)
	}
	return conn.SetDeadline(time.Time{})
}

// read collects commands until it meets the end.
func (r *Recording) read(reader *bufio.Reader) {
	defer close(r.done)
	for {
		line, err := reader.ReadBytes('\n')
		var c Command
		if err == nil {
			c, err = ParseCommand(bytes.TrimRight(line, "\r\n"))
		}
		r.mu.Lock()
		switch {
		case err != nil:
			r.err = err
		case c.Name() == "ECHO" && len(c.Args) == 2 && c.Args[1] == r.end:
			err = io.EOF
		case r.keeps(c):
			r.commands = append(r.commands, c)
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (r *Recording) keeps(c Command) bool {
	for _, keep := range r.keep {
		if !keep(c) {
			return false
		}
	}
	return true
}

// ParseCommand reads a line of MONITOR without its end:
//
//	+1700000000.123456 [0 127.0.0.1:50000] "set" "key" "\x00\"value\""
func ParseCommand(line []byte) (Command, error) {
	c, err := parseCommand(line)
	if err != nil {
		return Command{}, fmt.Errorf("%w in %q", err, line)
	}
	return c, nil
}

func parseCommand(line []byte) (Command, error) {
	var c Command
	stamp, rest, ok := strings.Cut(strings.TrimPrefix(string(line), "+"), " [")
	if !ok {
		return c, errors.New("no source")
	}
	seconds, micros, ok := strings.Cut(stamp, ".")
	sec, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || !ok || len(micros) != 6 {
		return c, errors.New("bad time")
	}
	usec, err := strconv.ParseUint(micros, 10, 32)
	if err != nil {
		return c, errors.New("bad time")
	}
	c.Time = time.Unix(sec, int64(usec)*1000)

	source, rest, ok := strings.Cut(rest, `] "`) // an IPv6 address has brackets of its own
	if !ok {
		return c, errors.New("no command")
	}
	db, source, ok := strings.Cut(source, " ")
	if c.DB, err = strconv.Atoi(db); err != nil || !ok {
		return c, errors.New("bad database")
	}
	c.Source, c.Lua = source, source == "lua"

	for {
		var arg string
		if arg, rest, err = unquote(rest); err != nil {
			return c, err
		}
		c.Args = append(c.Args, arg)
		if rest == "" {
			return c, nil
		}
		if rest, ok = strings.CutPrefix(rest, ` "`); !ok {
			return c, errors.New("no quote between arguments")
		}
	}
}

// unquote returns the argument that s begins with, after its opening quote, and what follows its
// closing one.
func unquote(s string) (arg, rest string, err error) {
	plain := strings.IndexAny(s, `"\`)
	if plain >= 0 && s[plain] == '"' { // nothing escaped: the usual case
		return s[:plain], s[plain+1:], nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			i++
			if i == len(s) {
				return "", "", errors.New("a backslash at the end")
			}
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case 't':
				b.WriteByte('\t')
			case 'a':
				b.WriteByte('\a')
			case 'b':
				b.WriteByte('\b')
			case '\\', '"':
				b.WriteByte(s[i])
			case 'x':
				if i+2 >= len(s) {
					return "", "", errors.New("a short escape")
				}
				value, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
				if err != nil {
					return "", "", errors.New("a bad escape")
				}
				b.WriteByte(byte(value))
				i += 2
			default:
				return "", "", fmt.Errorf("an unknown escape \\%c", s[i])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", errors.New("no closing quote")
}

// Micros reads a time in ms, as clients send it and as scores have it, in whole µs.
func Micros(text string) (micros int64, ok bool) {
	ms, err := strconv.ParseFloat(text, 64)
	return int64(math.Round(ms * 1000)), err == nil
}
