package main

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// rueidis.go has the peers over rueidis, which by itself puts the commands of concurrent callers
// into pipelines.

// rueidisRow returns a contender with a client of rueidis with its defaults.
func rueidisRow(name string, open opener[rueidis.Client]) *contender {
	return &contender{name: name, open: func(ctx context.Context, b *lab, s scene) (runner, error) {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr}})
		if err != nil {
			return nil, err
		}
		ask, err := open(ctx, b, s, client)
		if err != nil {
			client.Close()
			return nil, err
		}
		return goRunner{b.crew, ask, client.Close}, nil
	}}
}

// gcra is the generic cell rate algorithm. It stores the theoretical arrival time of the next
// request.
//
//	KEYS   1 the theoretical arrival time (ms)
//	ARGV   1 now (ms), 2 ms for each permit, 3 ms for all permits of the rate, 4 permits wanted
//	reply  0 if they are granted, else the ms until they would be
const gcra = `local now, interval = tonumber(ARGV[1]), ARGV[3]
local arrival = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now)) + ARGV[4] * ARGV[2]
local wait = arrival - now - interval
if wait > 0 then
  return math.ceil(wait)
end
redis.call('SET', KEYS[1], arrival, 'PX', interval)
return 0`

func openGCRA(_ context.Context, _ *lab, s scene, client rueidis.Client) (asker, error) {
	script := rueidis.NewLuaScript(gcra)
	millis := float64(s.rate.Interval) / float64(time.Millisecond)
	perPermit, interval := number(millis/float64(s.rate.Permits)), number(millis)
	keys := make([][]string, len(s.names))
	for i, name := range s.names {
		keys[i] = []string{"gcra:" + name}
	}
	return func(ctx context.Context, i int, n int64, _ bool) (bool, error) {
		now := number(float64(time.Now().UnixMicro()) / 1000)
		wait, err := script.Exec(ctx, client, keys[i],
			[]string{now, perPermit, interval, strconv.FormatInt(n, 10)}).AsInt64()
		return err == nil && wait == 0, err
	}, nil
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// openRueidisScript calls Redisson's script, as openScript does.
func openRueidisScript(_ context.Context, b *lab, s scene, client rueidis.Client) (asker, error) {
	script := rueidis.NewLuaScript(b.script)
	keys := make([][]string, len(s.names))
	for i, name := range s.names {
		keys[i] = scriptKeys(name)
	}
	return func(ctx context.Context, i int, n int64, _ bool) (bool, error) {
		now, id := scriptArgs()
		args := []string{strconv.FormatInt(n, 10), strconv.FormatInt(now, 10), rueidis.BinaryString(id[:])}
		err := script.Exec(ctx, client, keys[i], args).Error()
		if rueidis.IsRedisNil(err) {
			return true, nil
		}
		return false, err
	}, nil
}
