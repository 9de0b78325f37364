module github.com/rratelimiter/rratelimiter/scripts/release

go 1.25.0

require golang.org/x/mod v0.31.0
