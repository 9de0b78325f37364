// Package lua embeds the scripts that Redis runs, and the parts that several scripts share. Package
// internal/script joins them.
package lua

import "embed"

// Files are the scripts, and in shared/ the fragments that they include.
//
//go:embed *.lua shared/*.lua
var Files embed.FS
