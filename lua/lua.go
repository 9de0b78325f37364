// Package lua holds the text of the scripts.
package lua

import "embed"

// Files are the scripts, and in shared/ the fragments that they include.
//
//go:embed *.lua shared/*.lua
var Files embed.FS
