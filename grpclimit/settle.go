package grpclimit

import (
	"context"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// settle.go corrects the permits of a call after its end.

// statuses are the HTTP statuses of the codes, as in gRPC-Gateway.
var statuses = map[codes.Code]int{
	codes.OK: http.StatusOK, codes.Canceled: 499, codes.InvalidArgument: http.StatusBadRequest,
	codes.DeadlineExceeded: http.StatusGatewayTimeout,
	codes.NotFound:         http.StatusNotFound, codes.AlreadyExists: http.StatusConflict,
	codes.PermissionDenied: http.StatusForbidden,
	codes.Unauthenticated:  http.StatusUnauthorized, codes.ResourceExhausted: http.StatusTooManyRequests,
	codes.FailedPrecondition: http.StatusBadRequest, codes.Aborted: http.StatusConflict,
	codes.OutOfRange:    http.StatusBadRequest,
	codes.Unimplemented: http.StatusNotImplemented, codes.Unavailable: http.StatusServiceUnavailable,
}

// codeOf returns the code that a client gets for the error of a handler.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}

// settle corrects the permits of a call that ended with a code.
func settle(ctx context.Context, guard *httplimit.Guard, d httplimit.Decision, code codes.Code) {
	sent, known := statuses[code]
	if !known {
		sent = http.StatusInternalServerError
	}
	guard.ActivePolicy().Settle(ctx, d, sent, http.Header{"Grpc-Status": {strconv.FormatUint(uint64(code), 10)}})
}
