package connect

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// explain.go adds advice to the errors of servers.

const notAllowed = "the Redis user has no permission for this: see docs/security.md"

// Explain adds advice to an error of the server, in the same line, and removes secrets.
func (s *Server) Explain(err error) error {
	if err == nil {
		return nil
	}
	err = s.Clean(err)
	var untrusted x509.UnknownAuthorityError
	var answer redis.Error
	advice := ""
	for prefix, text := range map[string]string{
		"NOAUTH":    "set RRL_PASSWORD",
		"WRONGPASS": "the password or the user is wrong: they come from RRL_PASSWORD and RRL_USER, or from the address",
		"NOPERM":    notAllowed,
		"READONLY":  "this is a replica: give the address of the master",
		"LOADING":   "try again once Redis has read its data",
		"OOM":       "Redis is full: see rrl doctor",
		"WRONGTYPE": "another program uses a key of this name: rrl show says which",
	} {
		if HasPrefix(err, prefix) {
			advice = text
		}
	}
	text := inScript.ReplaceAllString(err.Error(), "")
	text = unread.ReplaceAllString(text, script.Late(s.timeout).Error())
	switch {
	case strings.Contains(text, "all sentinels specified"):
		text = s.Where + ": " + text
		advice = sentinelAdvice(text)
	case advice != "":
	case strings.Contains(text, "can't run this command"), strings.Contains(text, "ACL failure"):
		advice = notAllowed
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		advice = "rrl ls lists all limiters, rrl set sets a rate"
	case errors.Is(err, rratelimiter.ErrExceedsRate):
		advice = "no request for more than the rate is ever granted; rrl show has the rate"
	case errors.Is(err, rratelimiter.ErrCrossSlotName):
		advice = "such a name works on a single server only"
	case errors.Is(err, io.EOF), strings.Contains(text, "connection reset"):
		text = s.Where + ": the server closed the connection: " + text
		advice = "does it need TLS? Then the address must begin with rediss://"
	case strings.Contains(text, "connection refused"),
		strings.Contains(text, "no such host"),
		strings.Contains(text, "i/o timeout"),
		strings.Contains(text, "no answer within"),
		errors.Is(err, context.DeadlineExceeded):
		text = s.Where + ": " + text
		advice = "is Redis there"
		if s.Options != nil && s.Options.TLSConfig != nil {
			advice += ", and does it speak TLS"
		}
		if s.from == byFlag {
			advice += "? --redis gives another address"
		} else {
			advice += "? The address comes from " + s.from
		}
	case errors.As(err, &answer) &&
		(strings.Contains(text, "invalid username-password") || strings.Contains(text, "AUTH")):
		advice = "is RRL_PASSWORD right?"
	case errors.As(err, &untrusted):
		advice = "give the CA's certificate by --ca"
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
	return "are they there? --redis gives other addresses"
}

// inScript matches what a server adds to the error of a script: Redis 6.2 before it, later ones
// behind it, Valkey 9.1 without the SHA-1.
var inScript = regexp.MustCompile(
	`Error running script \(call to \w+\): (?:@user_script: ?\d+: )*|,? script: (?:[0-9a-f]{40}, )?on @\S+$`,
)

// unread matches the error of a connection on which no reply came before the end of a call.
var unread = regexp.MustCompile(`(?:read|write) (?:tcp|unix) \S+: i/o timeout`)

// Brief returns the last part of an error's text: of "dial tcp 192.0.2.1:6379: connect: connection
// refused", that the connection is refused. Secrets are removed.
func (s *Server) Brief(err error) string {
	parts := strings.Split(s.Clean(err).Error(), ": ")
	return parts[len(parts)-1]
}

// Cause returns the innermost wrapped error.
func Cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Unanswered reports whether an error means that the server gave no answer: it can't be reached, or
// does not respond.
func Unanswered(err error) bool {
	var answer redis.Error
	return err != nil && !errors.As(err, &answer) && !errors.Is(err, rratelimiter.ErrNotInitialized) &&
		!errors.Is(err, rratelimiter.ErrCrossSlotName) && !errors.Is(err, context.Canceled)
}

// HasPrefix reports whether an error is one of Redis with that code.
func HasPrefix(err error, prefix string) bool {
	return redis.HasErrorPrefix(err, prefix) || redis.HasErrorPrefix(Cause(err), prefix)
}
