package limiter

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// detectredisson.go detects that Redisson uses rate limiters on a server, even before one of its
// records shows it on a limiter: Redis caches Redisson's script once it ran.

// RedissonScripts are the SHA1 digests of Redisson's tryAcquire script. TestMatrix (compat) checks
// that they include those of all its releases; releases between them share these scripts.
var RedissonScripts = []any{
	"df5536206d0c440727a5f17ab38851a31af682c7", // 3.13.6
	"873b6a3c0be138fbd885d12401aef7b45672df07", // 3.15.6
	"a23369f7eb133a5016039b245b3fd2482bcafcc3", // 3.16.8
	"f65fa99baa7d5568e00f123d0e62332001e4e223", // 3.17.5 to 3.21.0
	"71bab5abd65f60b576de6705d631e9c801e0039a", // 3.35.0
	"861d9229367b5aa9889ee26c5c31be7baeba2153", // 3.38.0 to 4.7.0
}

// RedissonHere returns whether Redisson has used a rate limiter on the limiter's server since the
// server started. It returns false if the server does not reply or refuses the command.
func (l *Limiter) RedissonHere(ctx context.Context) bool {
	server, err := l.client.Topology().Server(ctx, l.Key())
	if err != nil {
		return false
	}
	known := redis.NewBoolSliceCmd(ctx, append([]any{"script", "exists"}, RedissonScripts...)...)
	if err := server.Process(ctx, known); err != nil {
		return false
	}
	for _, here := range known.Val() {
		if here {
			return true
		}
	}
	return false
}
