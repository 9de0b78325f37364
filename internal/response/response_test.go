package response_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/response"
)

// A handler sees what the writer behind the recorder cannot do.
func TestRecorderInFrontOfAPlainWriter(t *testing.T) {
	w := &response.Recorder{ResponseWriter: struct{ http.ResponseWriter }{httptest.NewRecorder()}}
	w.Flush()
	var conn io.Closer
	var rw *bufio.ReadWriter
	var err error
	if conn, rw, err = w.Hijack(); !errors.Is(err, http.ErrNotSupported) || rw != nil {
		t.Errorf("%v, %v, %v", conn, rw, err)
	}
	if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) || w.Status != 0 {
		t.Errorf("%v, status %d", err, w.Status)
	}
}
