//go:build unix && !linux

package redistest

// This file stands in for process_linux.go elsewhere: a child survives when the test binary is killed,
// but not when a test or Main ends.

import (
	"syscall"
	"time"
)

func processAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// standsStill can't ask, so it waits for as long as a signal may take.
func standsStill(int) bool {
	time.Sleep(20 * time.Millisecond)
	return true
}
