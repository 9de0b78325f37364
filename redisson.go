package rratelimiter

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisson.go knows how to tell that Redisson uses rate limiters on a server, before any record on a limiter shows it: by
// its scripts, which Redis keeps once they ran.

// redissonScripts are the hashes of Redisson's script for tryAcquire. TestRedissonIsNoticed (compat) sees that those of
// all releases of the matrix are among them; releases between share them.
var redissonScripts = []any{
	"df5536206d0c440727a5f17ab38851a31af682c7", // 3.13.6
	"873b6a3c0be138fbd885d12401aef7b45672df07", // 3.15.6
	"a23369f7eb133a5016039b245b3fd2482bcafcc3", // 3.16.8
	"f65fa99baa7d5568e00f123d0e62332001e4e223", // 3.17.5 to 3.21.0
	"71bab5abd65f60b576de6705d631e9c801e0039a", // 3.35.0
	"861d9229367b5aa9889ee26c5c31be7baeba2153", // 3.38.0 to 4.7.0
}

// redissonHere tells whether Redisson has used a rate limiter on the limiter's server since that started. Where the server
// does not say, it tells no.
func (l *Limiter) redissonHere(ctx context.Context) bool {
	server, err := l.client.serverOf(ctx, l.keyNames[keyConfig])
	if err != nil {
		return false
	}
	known := redis.NewBoolSliceCmd(ctx, append([]any{"script", "exists"}, redissonScripts...)...)
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

// notice looks for Redisson on the server while callers wait: often, since it may come at any time and has nothing until
// then, and now and then once it is there. What it finds lets the line ask again, so that it can make room.
func (ln *line) notice() {
	again := time.Second
	if ln.share.redisson {
		again = 10 * time.Second
	}
	now := time.Now()
	if ln.client.alone || now.Before(ln.noticed.Add(again)) {
		return
	}
	ln.noticed = now
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), ln.client.callTimeout)
		defer cancel()
		here := ln.limiter.redissonHere(ctx)
		ln.mu.Lock()
		defer ln.exit()
		news := here && !ln.share.redisson
		ln.share.redisson = here
		if news && ln.waiting > 0 {
			ln.ask = true
			ln.depart()
		}
	}()
}
