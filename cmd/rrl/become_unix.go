//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// become replaces this process by a command. It returns only if that fails.
func become(command []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return unable(err)
	}
	return unable(&os.PathError{Op: "run", Path: path, Err: syscall.Exec(path, command, os.Environ())})
}

// dieOf ends the process by a signal, as if it had not been caught.
func dieOf(s syscall.Signal) {
	signal.Reset(s)
	if syscall.Kill(os.Getpid(), s) == nil {
		select {} // until the signal arrives
	}
}
