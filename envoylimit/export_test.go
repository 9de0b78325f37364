package envoylimit

import (
	"time"

	"github.com/rratelimiter/rratelimiter/classic"
)

// SetClock sets the clock of quotas.
func (s *Service) SetClock(now func() time.Time) { s.quotas = []classic.Option{classic.WithClock(now)} }
