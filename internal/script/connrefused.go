//go:build !plan9

package script

import (
	"errors"
	"syscall"
)

// windowsRefused is ECONNREFUSED on Windows, where syscall.ECONNREFUSED is another number.
const windowsRefused = syscall.Errno(10061)

// isRefusal reports whether a host refused a connection.
func isRefusal(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, windowsRefused)
}
