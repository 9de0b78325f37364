//go:build unix

package redisson

import (
	"os/exec"
	"syscall"
)

// ownGroup puts a process into a group of its own: Ctrl-C on a terminal ends a whole group, and the
// JVM and the server must not end before the demo.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
