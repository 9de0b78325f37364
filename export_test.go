package rratelimiter

import "github.com/rratelimiter/rratelimiter/internal/dispatch"

// The tests are in package rratelimiter_test. They tune a client's dispatcher, wait until it is in a certain state, and
// send it requests that no method makes; none of that is to become public.

// ClientCore returns what is behind a client.
func ClientCore(c *Client) *dispatch.Client { return c.core }

// LimiterCore returns what is behind a limiter.
func LimiterCore(l *Limiter) *dispatch.Limiter { return &l.core }

// SettingsOf returns what the options of a limiter and the defaults of its client come to.
func SettingsOf(l *Limiter) dispatch.Settings { return l.settings }
