package rules

import _ "embed"

// schema.go has the JSON Schema of a file, for editors.

//go:embed schema.json
var schema string

// Schema returns the JSON Schema (draft 7) of a file, with which editors check a file while it is
// written. rrl check-rules --schema prints it.
//
// The schema knows the fields of a file and the forms of their values. It accepts each word as a
// key, because a program can have its own keys. Parse finds more errors, for example a cost that is
// more than the rate.
func Schema() string { return schema }
