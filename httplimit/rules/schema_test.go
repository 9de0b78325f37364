package rules

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// A field or a method that only the parser has would be an error in an editor; one that only the
// schema has would be an error in Parse. The tests in examples/guide validate files by the schema.
func TestSchemaAndParserKnowTheSameFields(t *testing.T) {
	type object struct {
		Properties map[string]any `json:"properties"`
	}
	var file struct {
		object
		Definitions struct {
			Limit      object `json:"limit"`
			Descriptor object `json:"descriptor"`
			Method     struct {
				Enum []string `json:"enum"`
			} `json:"method"`
		} `json:"definitions"`
	}
	if err := json.Unmarshal([]byte(Schema()), &file); err != nil {
		t.Fatal(err)
	}
	for what, names := range map[string][2][]string{
		"fields of a file":       {slices.Collect(maps.Keys(file.Properties)), fileFields},
		"fields of a limit":      {slices.Collect(maps.Keys(file.Definitions.Limit.Properties)), limitFields},
		"fields of a descriptor": {slices.Collect(maps.Keys(file.Definitions.Descriptor.Properties)), descriptorFields},
		"methods":                {file.Definitions.Method.Enum, allMethods},
	} {
		inSchema, inParser := slices.Sorted(slices.Values(names[0])), slices.Sorted(slices.Values(names[1]))
		if len(inSchema) == 0 || !slices.Equal(inSchema, inParser) {
			t.Errorf("%s: the schema has %q, the parser %q", what, inSchema, inParser)
		}
	}
}
