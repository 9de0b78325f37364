//go:build !unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// become runs a command and exits with its code: this system can't replace a process.
func become(command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return exit{ended.ExitCode(), nil}
	}
	return unable(err)
}

// dieOf does nothing: this system has no signals, so only the exit code shows it.
func dieOf(syscall.Signal) {}
