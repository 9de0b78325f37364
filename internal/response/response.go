// Package response records the status of HTTP responses, for httplimit and echolimit. It also has
// what the log says about the responses of envoylimit, and which names header fields can have.
package response

import (
	"bufio"
	"net"
	"net/http"
	"regexp"
)

// ValidField matches the name of a header field.
var ValidField = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// A Recorder records the status of a response. A http.ResponseController can unwrap it.
type Recorder struct {
	http.ResponseWriter
	Status int // 0: none yet; 101 after Hijack
}

// Unwrap is for http.ResponseController.
func (w *Recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *Recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols { // a final status follows other 1xx statuses
		w.record(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *Recorder) Write(b []byte) (int, error) {
	w.record(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

func (w *Recorder) record(status int) {
	if w.Status == 0 {
		w.Status = status
	}
}

// Flush implements http.Flusher. It does nothing if the wrapped writer cannot flush.
func (w *Recorder) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *Recorder) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil {
		w.record(http.StatusOK)
	}
	return err
}

// Hijack implements http.Hijacker. It returns an error if the wrapped writer cannot be hijacked.
func (w *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.record(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
