package response

import "context"

type closedKey struct{}

// WithClosed returns a context for decisions of httplimit about requests of another protocol. text
// says in the log what becomes of the requests that httplimit.FailClosed fails.
func WithClosed(ctx context.Context, text string) context.Context {
	return context.WithValue(ctx, closedKey{}, text)
}

// Closed returns the text of WithClosed, or else that of a server that refuses the requests.
func Closed(ctx context.Context) string {
	if text, given := ctx.Value(closedKey{}).(string); given {
		return text
	}
	return "requests are refused"
}
