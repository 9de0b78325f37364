//go:build !unix

package maven

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// lock waits until this process alone has made the file, or the context ends. A file older than
// any build is what a crash has left.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			file.Close()
			return func() { os.Remove(path) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > 20*time.Minute {
			os.Remove(path)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
