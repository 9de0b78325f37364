// Package doubt tells what a call to Redis that failed leaves unknown.
package doubt

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// Left tells whether Redis may have served a call, given its error as go-redis gives it. There is no doubt where the call did
// not fail, the server answered, or the request never went out.
func Left(err error) bool {
	if err == nil {
		return false // and nothing of what follows takes memory
	}
	var answer redis.Error
	var network *net.OpError
	var certificate *tls.CertificateVerificationError // a client that trusts no server says nothing to it
	var plain tls.RecordHeaderError                   // nor one that meets a server without TLS
	return !errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) && !errors.Is(err, redis.ErrPoolTimeout) &&
		!errors.Is(err, redis.ErrPoolExhausted) && !(errors.As(err, &network) && network.Op == "dial") &&
		!errors.As(err, &certificate) && !errors.As(err, &plain)
}
