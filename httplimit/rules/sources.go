package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// sources.go reads files of limits: one, or those of a folder.

// A source is a file as it was read.
type source struct{ file, text string }

// read reads a file or, of a folder, the files whose names end with .yaml or .yml and do not begin
// with a dot, in the order of their names. It does not read folders in the folder.
func read(path string) ([]source, error) {
	names := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			name := filepath.Join(path, e.Name())
			ext := filepath.Ext(name)
			if strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" {
				continue
			}
			if info, err := os.Stat(name); err != nil || !info.IsDir() { // a link to a file is one
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("the folder %s has no file whose name ends with .yaml or .yml", path)
		}
	}
	var sources []source
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source{name, string(data)})
	}
	return sources, nil
}

// Load reads a file, or all files of a folder whose names end with .yaml or .yml, as ParseFile
// does. In a folder, each limit and each domain is in one of the files. Limits are checked in the
// order of the files' names.
func Load(path string, keys ...string) (File, error) {
	sources, err := read(path)
	if err != nil {
		return File{}, err
	}
	return Config{}.parse(sources, keys)
}
