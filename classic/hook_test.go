package classic_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// A recorder records the keys of scripts, and sends no command.
type recorder struct{ keys []string }

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *recorder) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		keys, _ := strconv.Atoi(fmt.Sprint(args[2]))
		for _, key := range args[3 : 3+keys] {
			r.keys = append(r.keys, fmt.Sprint(key))
		}
		return errors.New("not let through")
	}
}
