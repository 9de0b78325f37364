module github.com/rratelimiter/rratelimiter/httplimit/rules

go 1.25.0

require (
	github.com/rratelimiter/rratelimiter v0.1.0
	go.yaml.in/yaml/v4 v4.0.0
)

require golang.org/x/sys v0.30.0 // indirect

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/redis/go-redis/v9 v9.22.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	pgregory.net/rapid v1.3.0
)
