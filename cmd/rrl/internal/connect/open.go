package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// open.go connects to the server that flags and environment name.

// Flags are the flags that say where the server is, and how to reach it.
type Flags struct {
	Address, CA, Cert, Key string
	Insecure               bool
	// origin of the address, for errors: a flag, or an environment variable; "": it is not given
	From    string
	Timeout time.Duration // for each reply; 0: DefaultTimeout
	// gets a line if a reply takes longer than a second; nil: no lines
	Errs io.Writer
}

// tls returns the configuration from the flags of TLS; nil without any.
func (f Flags) tls() (*tls.Config, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" && !f.Insecure {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.Insecure}
	if f.CA != "" {
		bytes, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bytes) {
			return nil, fmt.Errorf("--ca: there is no certificate in %s", f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("--cert and --key belong together")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert, --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Open connects, and checks whether the server replies. The address of one node is enough for a
// cluster.
func Open(ctx context.Context, f Flags) (*Server, error) {
	config, err := f.tls()
	if err != nil {
		return nil, err
	}
	if f.Address == "" && f.From != "" {
		return nil, errors.New(f.From + " is empty: is a variable not set?")
	}
	address := cmp.Or(f.Address, "redis://localhost:6379")
	a := access{
		from: cmp.Or(f.From, byFlag),
		user: os.Getenv("RRL_USER"), password: os.Getenv("RRL_PASSWORD"),
		sentinelPassword: os.Getenv("RRL_SENTINEL_PASSWORD"),
		tls:              config, timeout: f.Timeout, errs: f.Errs,
	}
	if a.password == "" {
		a.password = os.Getenv("REDISCLI_AUTH")
	}
	for {
		s, err := connectBy(address, a)
		if err != nil {
			return nil, err
		}
		if err := s.within(ctx, func(ctx context.Context) error { return s.greet(ctx, &a.clustered) }); err != nil {
			s.Close()
			return nil, unmet{s.Explain(err)}
		}
		if _, cluster := s.Redis.(*redis.ClusterClient); cluster || !a.clustered {
			return s, nil
		}
		s.Close()
	}
}

// unmet is the error of a server that did not greet.
type unmet struct{ error }

func (u unmet) Unwrap() error { return u.error }

// refusals are parts of the errors of a server that does not accept the password, the user or the
// database number.
var refusals = []string{"NOAUTH", "WRONGPASS", "invalid password", "DB index"}

// greet returns an error if the server does not reply, or refuses the client. Any other error is an
// answer: the user may lack the permission for INFO. greet sets clustered if a single server is a
// node of a cluster.
func (s *Server) greet(ctx context.Context, clustered *bool) error {
	if nodes, cluster := s.Redis.(*redis.ClusterClient); cluster { // an error if no node replies with the list of nodes
		return nodes.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
	}
	info, err := s.Redis.Info(ctx, "cluster").Result()
	var answer redis.Error
	if err != nil {
		refused := slices.ContainsFunc(refusals, func(part string) bool { return strings.Contains(err.Error(), part) })
		if refused || !errors.As(err, &answer) {
			return err
		}
	}
	*clustered = s.Options != nil && s.Options.Network != "unix" && strings.Contains(info, "cluster_enabled:1")
	return nil
}
