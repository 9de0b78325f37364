package protocol

import "testing"

func TestRepairsHaveTexts(t *testing.T) {
	texts := map[string]bool{}
	for _, note := range []Notes{1, 2, 4, 8, 16, 32, 64, 128} {
		texts[(note | More | RateMismatch).Repaired()] = true
	}
	if texts[""] || len(texts) != 8 {
		t.Errorf("eight repairs have the words %v", texts)
	}
	if (More|RebuildPending|RateMismatch).Repaired() != "" ||
		(Notes(1|64)).Repaired() != Notes(1).Repaired()+", "+Notes(64).Repaired() {
		t.Errorf("%q and %q", (More | RebuildPending | RateMismatch).Repaired(), (Notes(1 | 64)).Repaired())
	}
	if len(repairs) != 8 {
		t.Errorf("%d repairs have texts, this test expects eight", len(repairs))
	}
}
