// Package proof tells tests which command runs them: make test, which has five minutes, or make
// proof, which has all servers and as many random cases as anything was ever found with.
package proof

import "os"

// env is set by make proof, and by whoever wants the size of make proof from go test.
const env = "RRATELIMITER_PROOF"

// Asked reports whether make proof runs the test.
func Asked() bool { return os.Getenv(env) != "" }

// Or returns the size of make proof if that runs the test, else that of make test.
func Or(proof, test int) int {
	if Asked() {
		return proof
	}
	return test
}

// Setting returns the environment of a command that runs a test in the size of this run, as a shell
// reads it: "" for the size of make test.
func Setting() string {
	if !Asked() {
		return ""
	}
	return env + "=1"
}
