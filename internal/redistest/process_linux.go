package redistest

// This file has the features for child processes that only Linux offers.

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// processAttr gives the child a process group of its own, so that a terminal's signals don't reach
// it, and lets the kernel kill it when this process ends.
func processAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// standsStill returns whether the process has stopped after SIGSTOP: its threads that run commands,
// which for Redis is only the first.
func standsStill(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// pid (name) state ...: the name may hold anything.
	end := bytes.LastIndexByte(stat, ')')
	return end >= 0 && end+2 < len(stat) && (stat[end+2] == 'T' || stat[end+2] == 't')
}
