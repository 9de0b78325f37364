//go:build unix && !linux

package redistest

// This file replaces process_linux.go on other systems: a child survives when the test binary is
// killed, but not when a test or Main ends.

import (
	"syscall"
	"time"
)

func processAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// standsStill cannot query the state of the process, so it waits for as long as a signal may take.
func standsStill(int) bool {
	time.Sleep(20 * time.Millisecond)
	return true
}
