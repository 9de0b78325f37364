package interleave

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// wire_test.go has the connections of a client. Each request that runs a script is a message, which
// waits until the path lets the server execute it. The server is outside of the bubble: it takes no
// time.

// A wire is a connection to the server that all paths of a scope use. It is safe for concurrent
// use.
type wire struct {
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

// scripts are those that a path may run, with their names in steps. They are loaded before.
var scripts = map[string]*script.Script{
	"acquire": protocol.AcquireScript, "acquiremany": protocol.AcquireManyScript, "allowall": protocol.AllowAllScript,
	"release": protocol.ReleaseScript, "probe": protocol.ProbeScript, "setrate": protocol.SetRateScript,
}

// newWire connects to the embedded server with go test -short, else to a real one.
func newWire(t *testing.T) *wire {
	var server *redistest.Server
	if testing.Short() {
		server = redistest.Embedded(t)
	} else {
		server = redistest.Shared(t)
	}
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w := &wire{conn: conn, in: bufio.NewReader(conn)}
	w.command("SELECT", strconv.Itoa(server.DB))
	for _, s := range scripts {
		w.command("SCRIPT", "LOAD", s.Text)
	}
	return w
}

// do makes the server execute n commands, and returns its replies.
func (w *wire) do(request []byte, n int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.conn.Write(request); err != nil {
		panic(err)
	}
	var replies []byte
	for range n {
		replies = append(replies, rig.ReadReply(w.in)...)
	}
	return replies
}

// command makes the server execute a command, and returns the lines of its reply.
func (w *wire) command(words ...string) []string {
	var request bytes.Buffer
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	return texts(w.do(request.Bytes(), 1))
}

// texts returns the texts in a request or in a reply.
func texts(resp []byte) (all []string) {
	for r := bufio.NewReader(bytes.NewReader(resp)); ; {
		head, err := r.ReadString('\n')
		if err != nil {
			return all
		}
		if length, _ := strconv.Atoi(strings.TrimSpace(head[1:])); head[0] == '$' && length >= 0 {
			text := make([]byte, length+len("\r\n"))
			for read := 0; read < len(text); {
				n, _ := r.Read(text[read:])
				read += n
			}
			all = append(all, string(text[:length]))
		}
	}
}

// A record is permits of a limiter that count until a time.
type record struct {
	id    string
	n     int64
	until time.Duration // since the path began
}

// records returns what Redis holds of a limiter.
func (w *wire) records(limiter string, interval time.Duration, start time.Time) (all []record) {
	found := w.command("ZRANGE", keys.Names(limiter, "me")[keys.Permits], "0", "-1", "WITHSCORES")
	for i := 0; i < len(found); i += 2 {
		member := found[i]
		score, _ := strconv.ParseFloat(found[i+1], 64)
		at := time.UnixMicro(int64(score*1000 + 0.5))
		all = append(all, record{member[:len(member)-4], rig.PermitsOf(member), at.Add(interval).Sub(start)})
	}
	return all
}

// A link is a connection of the client.
type link struct {
	net.Conn          // the client's end
	far      net.Conn // the other end
	path     *path
}

// dial makes a link.
func (p *path) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	return &link{near, netpipe.Conn(far), p}, nil
}

func (l *link) Close() error {
	l.far.Close()
	return l.Conn.Close()
}

// A message is a request that runs a script.
type message struct {
	*link
	name     string
	request  []byte
	commands int
	at       time.Duration // of its arrival
	held     bool          // other things happened first
}

// Write sends a request. If it runs no script, the server executes it at once.
func (l *link) Write(request []byte) (int, error) {
	m := &message{link: l, request: bytes.Clone(request), at: l.path.now()}
	for r := bufio.NewReader(bytes.NewReader(request)); ; m.commands++ {
		command := texts(rig.ReadReply(r))
		if len(command) == 0 {
			break
		}
		if strings.HasPrefix(strings.ToLower(command[0]), "eval") {
			m.name += " " + nameOf(command)
		}
	}
	if m.name == "" {
		_, err := l.far.Write(l.path.wire.do(request, m.commands))
		return len(request), err
	}
	l.path.mu.Lock()
	defer l.path.mu.Unlock()
	l.path.messages = append(l.path.messages, m)
	select {
	case l.path.arrived <- struct{}{}:
	default:
	}
	return len(request), nil
}

// nameOf returns the script of a command, and the limiters that it is for.
func nameOf(command []string) string {
	name := "script"
	for known, s := range scripts {
		if s.SHA == command[1] {
			name = known
		}
	}
	count, _ := strconv.Atoi(command[2])
	name += "("
	for i := 0; i+4 < count; i += 5 { // five keys for each limiter
		name += strings.TrimPrefix(command[3+i], slot)
	}
	return name + ")"
}
