package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// killers.go remembers which test killed each mutant last. That one runs first, by itself, which
// takes seconds. It is only a hint: if that test passes or is gone, all stages follow.

const killersFile = "internal/mutants/killers.json"

// A killer is a test that failed.
type killer struct{ Package, Test string }

// killers maps a mutation, by why, to its killer.
type killers map[string]killer

func readKillers() (killers, error) {
	text, err := os.ReadFile(killersFile)
	if errors.Is(err, fs.ErrNotExist) {
		return killers{}, nil
	}
	if err != nil {
		return nil, err
	}
	var known killers
	return known, json.Unmarshal(text, &known)
}

// write writes the killers of mutations that are still listed.
func (k killers) write() error {
	kept := killers{}
	for _, m := range mutations {
		if by, known := k[m.why]; known {
			kept[m.why] = by
		}
	}
	text, err := json.MarshalIndent(kept, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(killersFile, append(text, '\n'), 0o644)
}

// stage runs only that test.
func (k killer) stage() []string {
	return []string{"-timeout", "4m", "-run", "^" + k.Test + "$", k.Package}
}
