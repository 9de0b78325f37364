//go:build !unix

package redisson

import "os/exec"

func ownGroup(*exec.Cmd) {}
