// Package connect connects rrl to a Redis server, to a cluster, or to the master that Sentinels
// report. The addresses and passwords come from flags and from the environment. No password is
// printed. Errors say what the operator can do.
package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// connect.go makes the connection for an address, and ensures that no password in an address is
// ever printed: a printed address is put together anew from host, port and database, errors of
// parsers are replaced, and errors of servers, some of which repeat what they were sent, are
// cleaned.

// A Server is the Redis of a command.
type Server struct {
	Redis   redis.UniversalClient
	Where   string         // description for people
	Private bool           // no other program knows it
	Options *redis.Options // how to reach it; nil for a cluster
	Nodes   []string       // of a cluster
	from    string         // origin of the address: a flag, or an environment variable
	secrets []string       // that no printed text may contain
	stop    func()
	*patience

	once   sync.Once
	anyone *client // set by once
}

// A client is a client, and what is behind it.
type client struct {
	*rratelimiter.Client
	core *dispatch.Client
}

// A Limiter is a limiter, and what only tools need of it.
type Limiter struct {
	*rratelimiter.Limiter
	Of   string            // id of the client whose state it uses, if it is PER_CLIENT; "": not known
	core *dispatch.Limiter // if its name is invalid, each of its methods returns that error
}

// Survey reads the raw content of the limiter's keys, with at most count records from index first
// on, newest first. With own it reads the client's keys, whatever the limiter's type.
func (l *Limiter) Survey(ctx context.Context, first, count int, own bool) (protocol.Stored, error) {
	return l.core.Survey(ctx, first, count, own)
}

// Collect removes the client's own value and permits keys if they hold nothing of use. With dry it
// only returns what it would do. Keys with records that counted within the last idle are in use.
func (l *Limiter) Collect(ctx context.Context, idle time.Duration, dry bool) (protocol.Collected, error) {
	return l.core.Collect(ctx, idle, dry)
}

// Limiter returns a limiter of a client with an id; "" is any client. Its clock is the server's:
// this host's may be wrong.
func (s *Server) Limiter(name, client string) *Limiter {
	if client != "" {
		return s.newClient(rratelimiter.WithClientID(client)).limiter(name, client)
	}
	s.once.Do(func() { s.anyone = s.newClient() })
	return s.anyone.limiter(name, "")
}

func (s *Server) newClient(options ...rratelimiter.Option) *client {
	c := &client{}
	rdb := dispatch.Extended{Redis: s.Redis, Made: func(core *dispatch.Client) { c.core = core }}
	c.Client = rratelimiter.NewClient(rdb, append(options, rratelimiter.WithCallTimeout(s.timeout),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))...)
	return c
}

func (c *client) limiter(name, of string) *Limiter {
	core, _ := c.core.Limiter(name) // its methods return the error, too
	return &Limiter{c.RateLimiter(name), of, core}
}

// HasPassword reports whether a password is needed to reach the server.
func (s *Server) HasPassword() bool { return len(s.secrets) > 0 }

// Close ends all connections, and an embedded server.
func (s *Server) Close() {
	s.Redis.Close()
	if s.stop != nil {
		s.stop()
	}
}

// Clean removes the secrets from an error's text, and characters that a terminal may interpret,
// since a server may send any text. It keeps the wrapped errors for errors.Is and errors.As.
func (s *Server) Clean(err error) error {
	if err == nil {
		return nil
	}
	text := repeated.ReplaceAllString(err.Error(), "")
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	if text = render.Visible(text); text == err.Error() {
		return err
	}
	return cleaned{text, err}
}

type cleaned struct {
	text string
	err  error
}

func (c cleaned) Error() string        { return c.text }
func (c cleaned) Is(target error) bool { return errors.Is(c.err, target) }
func (c cleaned) As(target any) bool   { return errors.As(c.err, target) }

// repeated matches the arguments in a server's error for an unknown command. They can contain a
// part of a password.
var repeated = regexp.MustCompile(`(?s), with args beginning with: .*`)

var (
	addressed   = regexp.MustCompile(`(?is)\b((?:rediss?|unix)(?:\+\w+)?):/.*`)
	credentials = regexp.MustCompile(`(?i)\b((?:rediss?|unix)(?:\+\w+)?)://[^\s"]*@`)
)

// Redacted returns a user's text up to where an address begins.
func Redacted(text string) string { return addressed.ReplaceAllString(text, "$1://***") }

// LastDefence removes text in the place of an address's password, in case any other step missed
// one.
func LastDefence(text string) string { return credentials.ReplaceAllString(text, "$1://***@") }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Calls return their errors; log lines would break the view. The logger is global, so it is set
// before any client is made.
func init() { redis.SetLogger(silence{}) }

// To returns the server of an address, or starts an embedded one if it is "". It makes no call.
func To(address string) (*Server, error) {
	if address == "" {
		return embedded()
	}
	return connectBy(address, access{from: byFlag})
}

// byFlag is the origin of an address, unless it comes from an environment variable.
const byFlag = "--redis"

// access has what is needed beside an address.
type access struct {
	user, password, sentinelPassword string // used if the address has none
	tls                              *tls.Config
	// origin of the address, for errors: a flag, or an environment variable
	from      string
	clustered bool          // the address is that of a node of a cluster
	timeout   time.Duration // 0: DefaultTimeout
	errs      io.Writer     // gets a line about waiting; nil: none
}

// connectBy returns the server of an address that is not "". A host and a port alone are a single
// server, or a node of a cluster.
func connectBy(text string, a access) (*Server, error) {
	a.timeout = cmp.Or(a.timeout, DefaultTimeout)
	to, ok := parse(text)
	switch scheme, kind := to.scheme, to.kind; {
	case !strings.Contains(text, "://") && !ok,
		scheme != "redis" && scheme != "rediss" && (scheme != "unix" || kind != ""),
		kind != "" && kind != "cluster" && kind != "sentinel":
		return nil, errors.New(
			a.from + " is not an address: it must be host:port, or begin with redis://, rediss://, unix://, redis+cluster:// " +
				"or redis+sentinel://",
		)
	case !ok:
		return nil, a.unreadable()
	case a.tls != nil && scheme != "rediss":
		return nil, errors.New(
			"--ca, --cert, --key and --insecure are for TLS: the address of " + a.from +
				" must begin with rediss://, " +
				"rediss+cluster:// or rediss+sentinel://",
		)
	case kind == "sentinel":
		return connectSentinel(to, a)
	case kind == "cluster" || len(to.hosts) > 1 || a.clustered:
		return connectCluster(to, a)
	}
	options, err := redis.ParseURL(to.url(to.path, to.query))
	if err != nil || len(to.hosts) > 0 && options.Addr != to.hosts[0] {
		return nil, a.unreadable()
	}
	a.complete(&options.Username, &options.Password, &options.TLSConfig)
	a.wait(&options.ContextTimeoutEnabled, &options.DialTimeout, &options.ReadTimeout, &options.DialerRetries)
	s := a.server(redis.NewClient(options), inDatabase(to.scheme+"://"+render.Visible(options.Addr), options.DB))
	s.Options = options
	s.hide(options.Password, to.user)
	return s, nil
}

// complete sets what an address left out.
func (a access) complete(user, password *string, to **tls.Config) {
	if *password == "" {
		*password = a.password
		if *user == "" {
			*user = a.user
		}
	}
	if a.tls == nil {
		return
	}
	config := a.tls.Clone()
	if *to != nil {
		config.ServerName = (*to).ServerName
		config.InsecureSkipVerify = config.InsecureSkipVerify || (*to).InsecureSkipVerify
	}
	*to = config
}

// wait makes a client bound a call by its context (patience.go), unless the address has shorter
// timeouts.
func (a access) wait(byContext *bool, dial, read *time.Duration, tries *int) {
	*byContext, *tries = true, 1 // go-redis retries commands
	*dial, *read = cmp.Or(*dial, a.timeout), cmp.Or(*read, a.timeout)
}

// server returns a server whose calls are bounded.
func (a access) server(rdb redis.UniversalClient, where string) *Server {
	s := &Server{
		Redis: rdb, Where: where, from: a.from, patience: &patience{timeout: a.timeout, where: where, errs: a.errs},
	}
	rdb.AddHook(s.patience)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(s.patience) })
	}
	return s
}

// inDatabase adds the number of a database, unless it is 0, to the description of a server.
func inDatabase(where string, n int) string {
	if n == 0 {
		return where
	}
	return where + ", database " + strconv.Itoa(n)
}

// unreadable returns the error for an invalid address; it contains no part of it.
func (a access) unreadable() error {
	return errors.New(a.from + " is not a valid address, such as redis://host:6379/0, rediss://host:6379, " +
		"redis+cluster://host:6379, redis+sentinel://host:26379/master/0 or unix:///path/to/socket?db=0; put a password into " +
		"RRL_PASSWORD (not for demo and simulate), or write its characters / ? # @ : % , as %2F %3F %23 %40 %3A %25 %2C; " +
		"all hosts, separated by commas, are behind one user and password: redis+cluster://user:password@host:6379,host:6379")
}

// connectCluster returns a cluster, given by some of its nodes: redis://host:port,host:port.
func connectCluster(to address, a access) (*Server, error) {
	query := to.query
	for _, node := range to.hosts[1:] {
		query += "&addr=" + url.QueryEscape(node)
	}
	options, err := redis.ParseClusterURL(to.url("", strings.TrimPrefix(query, "&")))
	if err != nil || to.path != "" && to.path != "0" || !slices.Equal(options.Addrs, to.hosts) {
		return nil, a.unreadable()
	}
	a.complete(&options.Username, &options.Password, &options.TLSConfig)
	a.wait(&options.ContextTimeoutEnabled, &options.DialTimeout, &options.ReadTimeout, &options.DialerRetries)
	s := a.server(redis.NewClusterClient(options), "the cluster of "+strings.Join(options.Addrs, ", "))
	s.Nodes = options.Addrs
	s.hide(options.Password, to.user)
	return s, nil
}

// connectSentinel returns the master that sentinels have by a name:
// redis+sentinel://host:port,host:port/name/database. A password in the address is the master's.
func connectSentinel(to address, a access) (*Server, error) {
	master, database, _ := strings.Cut(to.path, "/")
	name, err := url.PathUnescape(master)
	if err != nil || name == "" {
		return nil, errors.New(a.from + " names no master: it must be like redis+sentinel://host:26379/mymaster")
	}
	options, err := redis.ParseURL(to.url(database, to.query))
	if err != nil || options.Addr != to.hosts[0] {
		return nil, a.unreadable()
	}
	a.complete(&options.Username, &options.Password, &options.TLSConfig)
	a.wait(&options.ContextTimeoutEnabled, &options.DialTimeout, &options.ReadTimeout, &options.DialerRetries)
	failover := &redis.FailoverOptions{
		MasterName: name, SentinelAddrs: to.hosts, SentinelPassword: a.sentinelPassword,
		Username: options.Username, Password: options.Password, DB: options.DB, TLSConfig: options.TLSConfig,
		DialerRetries: options.DialerRetries, DialTimeout: options.DialTimeout, ReadTimeout: options.ReadTimeout,
		WriteTimeout:          options.WriteTimeout,
		ContextTimeoutEnabled: options.ContextTimeoutEnabled,
	}
	where := fmt.Sprintf("the master %s of the sentinels %s", render.Printable(name), strings.Join(to.hosts, ", "))
	s := a.server(redis.NewFailoverClient(failover), inDatabase(where, options.DB))
	s.hide(options.Password, to.user)
	if a.sentinelPassword != "" {
		s.secrets = append(s.secrets, a.sentinelPassword)
	}
	return s, nil
}

// hide adds a password to the secrets, both plain and as written in the address, where it follows
// the user.
func (s *Server) hide(password, user string) {
	_, written, _ := strings.Cut(strings.TrimSuffix(user, "@"), ":")
	s.secrets = append(s.secrets, written, password)
	kept := s.secrets[:0]
	for _, secret := range s.secrets {
		if secret != "" {
			kept = append(kept, secret)
		}
	}
	s.secrets = kept
}

func embedded() (*Server, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("start the embedded server: %w", err)
	}
	s := access{timeout: DefaultTimeout}.server(redis.NewClient(&redis.Options{Addr: m.Addr()}), "embedded server")
	s.Private, s.stop = true, m.Close
	return s, nil
}
