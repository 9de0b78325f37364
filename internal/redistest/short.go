package redistest

import "testing"

// needsReal skips a test that needs a real server if go test has the flag -short: make check tests
// with the embedded server alone. All other runs have the servers, or fail.
func needsReal(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("redistest: with -short no real server starts")
	}
}
