package survey

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// recent.go reads the newest records of a limiter, for those who look again and again.

// A Grant is a record, as far as live views show it.
type Grant struct {
	At      time.Time
	Tag     string // of the Go client that wrote it; "": Java or unknown
	Permits int64
}

// Recent gives the grants dated within so long before now, newest first, and when that was by the
// server's clock. Where there are more than most of them, complete is false and the older ones are
// missing. own is as in Read.
func Recent(
	ctx context.Context, l *connect.Limiter, own bool, within time.Duration, most int,
) (grants []Grant, at time.Time, complete bool, err error) {
	stored, err := l.Survey(ctx, 0, page, own)
	if err != nil {
		return nil, at, false, err
	}
	at = stored.At
	edge := float64(at.Add(-within).UnixMilli())
	var last protocol.StoredRecord
	for seen := 0; ; {
		for _, r := range stored.Page {
			if r.Score <= edge {
				return grants, at, true, nil
			}
			// Records that came since the first page have moved those that follow: some are met
			// twice.
			if seen++; seen == 1 || r.Score < last.Score || r.Score == last.Score && r.Member < last.Member {
				_, tag, permits := read(r.Member)
				grants = append(grants, Grant{time.UnixMilli(int64(min(r.Score, 1e15))), tag, permits})
				last = r
			}
		}
		if len(stored.Page) < page {
			return grants, at, true, nil
		}
		if len(grants) >= most {
			return grants, at, false, nil
		}
		if stored, err = l.Survey(ctx, seen, page, own); err != nil {
			return nil, at, false, err
		}
	}
}
