// Command assembled prints the scripts as Redis gets them, joined with their shared parts. The line
// number in an error of Redis is a line of what it prints.
//
//	go run ./internal/assembled acquire    prints one script
//	go run ./internal/assembled            prints the names of all
//	go run ./internal/assembled -to DIR    writes each one to DIR/NAME.lua
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

func main() {
	to := flag.String("to", "", "write the scripts to this `folder`")
	flag.Parse()
	if err := run(*to, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "assembled:", err)
		os.Exit(1)
	}
}

func run(to string, names []string) error {
	scripts, err := assembled()
	if err != nil {
		return err
	}
	if to != "" {
		for name, text := range scripts {
			if err := os.WriteFile(filepath.Join(to, name+".lua"), []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	if len(names) == 0 {
		fmt.Println(strings.Join(slices.Sorted(maps.Keys(scripts)), "\n"))
	}
	for _, name := range names {
		text, found := scripts[strings.TrimSuffix(name, ".lua")]
		if !found {
			return fmt.Errorf("there is no script %q", name)
		}
		fmt.Print(text)
	}
	return nil
}

// assembled returns the scripts that Redis gets, by name.
func assembled() (map[string]string, error) {
	files, err := lua.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	scripts := map[string]string{
		"peek": protocol.PeekScript.Text, "peekrate": protocol.PeekRateScript.Text,
	}
	for _, file := range files {
		if !file.IsDir() {
			name := strings.TrimSuffix(file.Name(), ".lua")
			scripts[name] = script.Load(lua.Files, name).Text
		}
	}
	return scripts, nil
}
