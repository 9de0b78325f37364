package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// session.go has what all commands on a live Redis share: the flags for server and client, the
// limiters that these select, questions and progress.

// common has the flags of such a command.
type common struct {
	connect.Flags
	json, quoted bool
	client       string
	whose        bool // the command has --client
	flags        *pflag.FlagSet
}

const environment = `
The server is that of --redis, or else redis://localhost:6379. What the address lacks is taken from the environment: the
password (RRL_PASSWORD or REDISCLI_AUTH), the user (RRL_USER) and the sentinels' password (RRL_SENTINEL_PASSWORD). Each
flag that is not given is taken from there, too: --redis from RRL_REDIS, as rrl --help says.`

// live returns a command that works on a live Redis.
func (c *common) live(
	cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error,
) *cobra.Command {
	return c.serving(cmd, func(ctx context.Context, s *session, args []string) (err error) {
		s.Errs = s.errs
		if s.Server, err = connect.Open(ctx, s.Flags); err != nil {
			return err
		}
		defer s.Close()
		return s.Explain(cmp.Or(do(ctx, s, args), s.Failed))
	})
}

// serving returns a command that starts also while Redis is away: its session has no server, and it
// uses connect.Dial.
func (c *common) serving(
	cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error,
) *cobra.Command {
	cmd.Long += "\n" + environment
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := c.begin()
		if err != nil {
			return err
		}
		if s.client, err = c.clientID(); err != nil {
			return err
		}
		s.in, s.Out, s.errs = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		s.Colour = terminal(s.Out) && os.Getenv("NO_COLOR") == ""
		s.Width = render.TerminalWidth(s.Out)
		return cmp.Or(do(cmd.Context(), s, args), s.Failed)
	}
	cmd.Flags().SortFlags = false
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return cmd
}

// addFlags adds the flags, after those of the command itself.
func (c *common) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.flags = f
	if c.whose {
		f.StringVar(&c.client, "client", "", "`id` of one client of a PER_CLIENT limiter, or the word all")
		// fails only if it is registered already
		cmd.RegisterFlagCompletionFunc("client", c.completeClient)
	}
	f.BoolVar(&c.json, "json", false, "write one JSON object a line")
	f.BoolVar(&c.quoted, "quoted", false, `read names, and ids of clients, in double quotes with escapes: "a\x00b"`)
	f.StringVar(
		&c.Address, "redis", "",
		"`address` of Redis: host:6379, redis://host:6379/0, rediss:// for TLS, unix:///socket, redis+cluster://host:6379, redis+sentinel://host:26379/master",
	)
	f.StringVar(&c.CA, "ca", "", "`file` with the CA certificates for the server's certificate (PEM)")
	f.StringVar(&c.Cert, "cert", "", "`file` with the client certificate (PEM)")
	f.StringVar(&c.Key, "key", "", "`file` with the key of --cert (PEM)")
	f.BoolVar(&c.Insecure, "insecure", false, "accept any certificate of the server")
	if c.Timeout = connect.DefaultTimeout; f.Lookup("timeout") == nil { // that of acquire is for the permits
		f.DurationVar(&c.Timeout, "timeout", c.Timeout, "maximum wait for each reply of Redis")
	}
}

// A session is one command on one server.
type session struct {
	*connect.Server
	*common
	*render.Output
	in   io.Reader
	errs io.Writer
	// clients that have state, by the names of limiters; nil before clientsOf has searched all keys
	clients map[string][]string
}

// begin returns a session without a server.
func (c *common) begin() (*session, error) {
	if c.From = sourceOf(c.flags.Lookup("redis")); c.Timeout <= 0 {
		return nil, errors.New("--timeout must be positive")
	}
	return &session{common: c, Output: new(render.Output)}, nil
}

// open connects to the server of the flags.
func (c *common) open(ctx context.Context) (*session, error) {
	s, err := c.begin()
	if err == nil {
		s.Server, err = connect.Open(ctx, c.Flags)
	}
	return s, err
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
		return "", fmt.Errorf(`--quoted: %q is not a name in double quotes with escapes, such as "a\x00b"`, arg)
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
		return "", fmt.Errorf(`--client: %q is not an id in double quotes with escapes, such as "a\x00b"`, c.client)
	}
	return id, nil
}

// clientsOf returns the clients that have state of their own on a limiter. The first call searches
// all keys, for all limiters of the command.
func (s *session) clientsOf(ctx context.Context, name string) ([]string, error) {
	if s.clients == nil {
		keys, err := survey.StateKeys(ctx, s.Redis, nil)
		if err != nil {
			return nil, err
		}
		s.clients = survey.Clients(keys)
	}
	return s.clients[name], nil
}

// states returns the limiters to work on for one name: one for a shared state; of a PER_CLIENT
// limiter one for each selected client. "--client all" selects a shared state, too.
func (s *session) states(ctx context.Context, name string) ([]*connect.Limiter, error) {
	shared := s.Limiter(name, "")
	rate, err := shared.Config(ctx)
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return nil, survey.Absent(name, survey.Reason(err))
	case err != nil:
		return nil, err
	case rate.Type != rratelimiter.PerClient && s.client != "" && s.client != survey.Everyone:
		return nil, fmt.Errorf("%s is not a PER_CLIENT limiter: leave --client out", render.Printable(name))
	case rate.Type != rratelimiter.PerClient:
		return []*connect.Limiter{shared}, nil
	case s.client == "":
		return nil, fmt.Errorf(
			"%s is a PER_CLIENT limiter: select a client by --client ID, or all by --client all",
			render.Printable(name),
		)
	case s.client != survey.Everyone:
		return []*connect.Limiter{s.Limiter(name, s.client)}, nil
	}
	ids, err := s.clientsOf(ctx, name)
	var all []*connect.Limiter
	for _, id := range ids {
		all = append(all, s.Limiter(name, id))
	}
	return all, err
}

// agree asks for confirmation before an operation that can't be undone. Without a terminal, --yes
// is required.
func (s *session) agree(ctx context.Context, question string) error {
	if !terminal(s.in) {
		return errors.New("there is no terminal to ask for confirmation: use --yes")
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
		return errors.New("not confirmed")
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
		p.total, _ = survey.Keys(ctx, s.Redis) // 0 after an error: no total is shown
	}
	return p
}

func (p *progress) step(keys, found int) {
	p.keys += keys
	if !terminal(p.s.errs) || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.s.errs, "\r\x1b[K%s of %s keys, %s found", render.Thousands(min(int64(p.keys), p.total)),
		render.Thousands(p.total), render.Thousands(int64(found)))
}

func (p *progress) done() {
	if p.shown {
		fmt.Fprint(p.s.errs, "\r\x1b[K")
	}
}

// input reads a file; "" and "-" are the standard input, which must not be a terminal.
func input(in io.Reader, file string) ([]byte, error) {
	if file != "" && file != "-" {
		return os.ReadFile(file)
	}
	if terminal(in) {
		return nil, errors.New("the standard input is a terminal: give a file")
	}
	return io.ReadAll(in)
}
