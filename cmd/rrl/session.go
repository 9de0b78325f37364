package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// session.go has what all commands on a live Redis share: the flags for server and client, the connection, and
// explanations of errors.

// common has the flags of such a command.
type common struct {
	address, ca, cert, key string
	insecure               bool
	json, quoted           bool
	client                 string
	whose                  bool // the command has --client
	given                  func(flag string) bool
}

const environment = `
The server is the one of --redis, else of RRL_REDIS, else redis://localhost:6379. Passwords come from the environment:
RRL_PASSWORD or REDISCLI_AUTH, with RRL_USER where there are users, and RRL_SENTINEL_PASSWORD.`

// live returns a command that works on a live Redis. Its name decides which arguments it takes.
func (c *common) live(cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	cmd.Long += "\n" + environment
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer s.close()
		if s.client, err = c.clientID(); err != nil {
			return err
		}
		s.in, s.Out, s.errs = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		s.Colour = terminal(s.Out) && os.Getenv("NO_COLOR") == ""
		err = do(cmd.Context(), s, args)
		return s.explain(cmp.Or(err, s.Failed))
	}
	cmd.Flags().SortFlags = false
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return cmd
}

// flags adds the flags, after those of the command itself.
func (c *common) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.given = f.Changed
	if c.whose {
		f.StringVar(&c.client, "client", "", "`id` of one client of a PER_CLIENT limiter, or all")
		cmd.RegisterFlagCompletionFunc("client", c.completeClient) // fails only if it is registered already
	}
	f.BoolVar(&c.json, "json", false, "one JSON object a line")
	f.BoolVar(&c.quoted, "quoted", false, `names, and ids of clients, are given in double quotes, with escapes: "a\x00b"`)
	f.StringVar(&c.address, "redis", "", "`address` of Redis: redis://host:6379/0, rediss:// for TLS, unix:///socket, redis+cluster://host:6379, redis+sentinel://host:26379/master")
	f.StringVar(&c.ca, "ca", "", "`file` with the certificates that sign the server's (PEM)")
	f.StringVar(&c.cert, "cert", "", "`file` with the client certificate (PEM)")
	f.StringVar(&c.key, "key", "", "`file` with the key of --cert (PEM)")
	f.BoolVar(&c.insecure, "insecure", false, "accept any certificate")
}

// tls returns the configuration from the flags of TLS; nil without any.
func (c *common) tls() (*tls.Config, error) {
	if c.ca == "" && c.cert == "" && c.key == "" && !c.insecure {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.insecure}
	if c.ca != "" {
		bytes, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bytes) {
			return nil, fmt.Errorf("--ca: there is no certificate in %s", c.ca)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, errors.New("--cert and --key belong together")
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("--cert, --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// fromEnvironment reports whether the address is from the environment.
func (c *common) fromEnvironment() bool { return c.address == "" && os.Getenv("RRL_REDIS") != "" }

// A session is one command on one server.
type session struct {
	*server
	*common
	*render.Output
	anyone *rratelimiter.Client
	now    func() time.Time // this host's clock
	in     io.Reader
	errs   io.Writer
}

// open connects, and checks whether the server replies. The address of one node is enough for a cluster.
func (c *common) open(ctx context.Context) (*session, error) {
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	address, from := c.address, "--redis"
	switch {
	case address == "" && c.given("redis"):
		return nil, errors.New("--redis is empty: is a variable not set?")
	case c.fromEnvironment():
		address, from = os.Getenv("RRL_REDIS"), "RRL_REDIS"
	case address == "":
		address = "redis://localhost:6379"
	}
	a := access{
		from: from,
		user: os.Getenv("RRL_USER"), password: os.Getenv("RRL_PASSWORD"), sentinelPassword: os.Getenv("RRL_SENTINEL_PASSWORD"),
		tls: config, patient: true,
	}
	if a.password == "" {
		a.password = os.Getenv("REDISCLI_AUTH")
	}
	for {
		srv, err := connectBy(address, a)
		if err != nil {
			return nil, err
		}
		s := &session{server: srv, common: c, Output: new(render.Output), now: time.Now}
		s.anyone = s.newClient()
		if nodes, cluster := srv.rdb.(*redis.ClusterClient); cluster {
			there := func(context.Context, *redis.Client) error { return nil }
			if err := nodes.ForEachMaster(ctx, there); err != nil { // no node replies with the list of nodes
				s.close()
				return nil, s.explain(err)
			}
			return s, nil
		}
		info, err := srv.rdb.Info(ctx, "cluster").Result()
		var answer redis.Error
		if err != nil && (!errors.As(err, &answer) || redis.HasErrorPrefix(err, "NOAUTH")) {
			s.close()
			return nil, s.explain(err)
		}
		if srv.options == nil || srv.options.Network == "unix" || !strings.Contains(info, "cluster_enabled:1") {
			return s, nil
		}
		s.close()
		a.clustered = true
	}
}

const notAllowed = "the user of RRL_USER may not do this: docs/security.md has what rrl needs"

// explain adds advice to an error, in the same line, and removes secrets.
func (s *session) explain(err error) error {
	if err == nil {
		return nil
	}
	err = s.clean(err)
	var untrusted x509.UnknownAuthorityError
	advice := ""
	for prefix, text := range map[string]string{
		"NOAUTH":    "set RRL_PASSWORD",
		"WRONGPASS": "the password, or the user, is not right: RRL_PASSWORD and RRL_USER have them, or the address",
		"NOPERM":    notAllowed,
		"READONLY":  "this is a replica: name the master",
		"LOADING":   "try again once Redis has read its data",
		"OOM":       "Redis is full: see rrl doctor",
		"WRONGTYPE": "another program uses a key of this name: rrl show says which",
	} {
		if redis.HasErrorPrefix(err, prefix) || redis.HasErrorPrefix(cause(err), prefix) {
			advice = text
		}
	}
	text := inScript.ReplaceAllString(err.Error(), "")
	switch {
	case strings.Contains(text, "all sentinels specified"):
		text = s.where + ": " + text
		advice = sentinelAdvice(text)
	case advice != "":
	case strings.Contains(text, "can't run this command"), strings.Contains(text, "ACL failure"):
		advice = notAllowed
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		advice = "rrl ls lists what is there, rrl set sets a rate"
	case errors.Is(err, rratelimiter.ErrExceedsRate):
		advice = "rrl show says the rate, and more at once is never granted"
	case errors.Is(err, rratelimiter.ErrCrossSlotName):
		advice = "such a name works on a single server only"
	case errors.Is(err, io.EOF), strings.Contains(text, "connection reset"):
		text = s.where + ": it hung up: " + text
		advice = "does it want TLS? Then the address begins with rediss://"
	case strings.Contains(text, "connection refused"), strings.Contains(text, "no such host"), strings.Contains(text, "i/o timeout"),
		strings.Contains(text, "no answer within"), errors.Is(err, context.DeadlineExceeded):
		text = s.where + ": " + text
		advice = "is Redis there"
		if s.options != nil && s.options.TLSConfig != nil {
			advice += ", and does it speak TLS"
		}
		if s.fromEnvironment() {
			advice += "? RRL_REDIS names this one"
		} else {
			advice += "? --redis names another"
		}
	case strings.Contains(text, "invalid username-password"), strings.Contains(text, "AUTH"):
		advice = "is RRL_PASSWORD right?"
	case errors.As(err, &untrusted):
		advice = "--ca names who signs"
	}
	if advice == "" && text == err.Error() {
		return err
	}
	if advice != "" {
		text = strings.TrimSuffix(text, ".") + "; " + advice
	}
	return cleaned{text, err}
}

// sentinelAdvice returns advice on sentinels that did not name a master.
func sentinelAdvice(text string) string {
	for _, known := range [...]struct{ part, advice string }{
		{"WRONGPASS", "RRL_SENTINEL_PASSWORD is not right"},
		{"NOAUTH", "set RRL_SENTINEL_PASSWORD"},
		{"redis: nil", "they know no master of this name"},
		{"unknown command", "is it a sentinel?"},
	} {
		if strings.Contains(text, known.part) {
			return known.advice
		}
	}
	return "are they there? --redis names others"
}

// inScript matches the suffix that Redis adds to the error of a script.
var inScript = regexp.MustCompile(`,? script: [0-9a-f]{40}, on @\S+$`)

// tolerable reports whether an error concerns only one limiter, so that others can be read.
func tolerable(err error) bool {
	return errors.Is(err, rratelimiter.ErrNotInitialized) || errors.Is(err, rratelimiter.ErrCrossSlotName) || isWrongType(err)
}

// cause returns the innermost wrapped error.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// named parses a limiter's name argument.
func (s *session) named(arg string) (string, error) {
	if !s.quoted {
		if arg == "" {
			return "", errors.New(`the name is empty: is a variable not set? A limiter without a name is --quoted '""'`)
		}
		return arg, nil
	}
	name, err := strconv.Unquote(arg)
	if err != nil {
		return "", fmt.Errorf(`--quoted: %q is no name in double quotes with escapes, such as "a\x00b"`, arg)
	}
	return name, nil
}

// clientID parses --client: with --quoted it may be in double quotes.
func (c *common) clientID() (string, error) {
	if !c.quoted || !strings.HasPrefix(c.client, `"`) {
		return c.client, nil
	}
	id, err := strconv.Unquote(c.client)
	if err != nil {
		return "", fmt.Errorf(`--client: %q is no id in double quotes with escapes, such as "a\x00b"`, c.client)
	}
	return id, nil
}

// limiter returns a limiter of a client with an id; "" is any client. Its clock is the server's: this host's may be
// wrong.
func (s *session) limiter(name, client string) *rratelimiter.Limiter {
	if client != "" {
		return s.newClient(rratelimiter.WithClientID(client)).RateLimiter(name)
	}
	return s.anyone.RateLimiter(name)
}

func (s *session) newClient(options ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.NewClient(s.rdb, append(options, rratelimiter.WithCallTimeout(patience),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))...)
}

// everyone is the value of --client for all clients.
const everyone = "all"

// states returns the limiters to work on for one name: one for a shared state; of a PER_CLIENT limiter one for each
// selected client.
func (s *session) states(ctx context.Context, name string) ([]*rratelimiter.Limiter, error) {
	shared := s.limiter(name, "")
	rate, err := shared.Config(ctx)
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return nil, absent(name, survey.Reason(err))
	case err != nil:
		return nil, err
	case rate.Type != rratelimiter.PerClient && s.client != "":
		return nil, fmt.Errorf("%s is no PER_CLIENT limiter: leave --client out", render.Printable(name))
	case rate.Type != rratelimiter.PerClient:
		return []*rratelimiter.Limiter{shared}, nil
	case s.client == "":
		return nil, fmt.Errorf("%s is a PER_CLIENT limiter: --client says whose permits, by id, or all", render.Printable(name))
	case s.client != everyone:
		return []*rratelimiter.Limiter{s.limiter(name, s.client)}, nil
	}
	ids, err := shared.Clients(ctx)
	var all []*rratelimiter.Limiter
	for _, id := range ids {
		all = append(all, s.limiter(name, id))
	}
	return all, err
}

// absent returns the error for a limiter that does not exist, or that can't be used for a reason.
func absent(name, reason string) error {
	text := "there is no limiter " + render.Printable(name)
	if reason != "" && reason != noRate {
		text = render.Printable(name) + " can't be used: " + reason
	}
	return cleaned{text, rratelimiter.ErrNotInitialized}
}

// noRate is the reason for a limiter without a configuration.
const noRate = "it has no rate"

// lookers is the number of limiters that are read at a time.
const lookers = 16

// each calls do for every name, at most lookers at a time, and returns the results in order.
func each[T any](ctx context.Context, names []string, do func(context.Context, string) (T, error)) ([]T, error) {
	found := make([]T, len(names))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	for first := range lookers {
		group.Go(func() {
			for i := first; i < len(names) && ctx.Err() == nil; i += lookers {
				one, err := do(ctx, names[i])
				if err != nil {
					stop(err)
				}
				found[i] = one
			}
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return found, nil
}

// whom returns the client of a limiter that has a client id.
func (s *session) whom(l *rratelimiter.Limiter) string {
	if s.client == "" {
		return ""
	}
	return l.Client().ID()
}

// agree asks for confirmation before an operation that can't be undone. Without a terminal, --yes is required.
func (s *session) agree(ctx context.Context, question string) error {
	if !terminal(s.in) {
		return errors.New("confirmation needs a terminal: use --yes")
	}
	fmt.Fprintf(s.errs, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(s.in).ReadString('\n')
		answers <- answer
	}()
	var answer string
	select {
	case answer = <-answers:
	case <-ctx.Done():
		fmt.Fprintln(s.errs)
		return ctx.Err()
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// terminal reports whether a stream is a terminal. Tests replace it.
var terminal = render.IsTerminal

// A progress shows the progress of a search on a terminal.
type progress struct {
	s     *session
	total int64
	keys  int
	last  time.Time
	shown bool
}

// progress starts to show the progress of a search of all keys.
func (s *session) progress(ctx context.Context) *progress {
	p := &progress{s: s}
	if terminal(s.errs) {
		p.total, _ = survey.Keys(ctx, s.rdb) // 0 after an error: no total is shown
	}
	return p
}

func (p *progress) step(keys, found int) {
	p.keys += keys
	if !terminal(p.s.errs) || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.s.errs, "\r\x1b[K%s of %s keys, %s found", render.Thousands(min(int64(p.keys), p.total)), render.Thousands(p.total), render.Thousands(int64(found)))
}

func (p *progress) done() {
	if p.shown {
		fmt.Fprint(p.s.errs, "\r\x1b[K")
	}
}
