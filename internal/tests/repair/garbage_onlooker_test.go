package repair

import (
	"strconv"
	"strings"
)

// garbage_onlooker_test.go has the independent script that says what a limiter must do with random
// garbage.

// The onlooker returns the state of a limiter's keys, and then, if it is given a mess, writes it
// and returns the state after that.
//
// KEYS  those of the limiter, then those of the new name for renames
// ARGV  1 now (ms), 2 now in the mess (ms), then commands: number of words, words, ...
// reply two views
const onlooker = `
local function kind(key) return redis.call('TYPE', key).ok end
local function view(now)
  local rate, every, type = false, false, false
  local config = kind(KEYS[1])
  if config == 'hash' then
    rate, every, type = unpack(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type'))
  end
  local value, permits = KEYS[2], KEYS[4]
  if type == '1' then value, permits = KEYS[3], KEYS[5] end
  local values, records = kind(value), kind(permits)
  local length = 60000
  if every and string.find(every, '^%d+$') then length = #every <= 15 and tonumber(every) or 1e15 end
  local edge = now - length
  local live, dead, count, entries, ahead, huge = 0, 0, 0, 0, 0, {}
  if records == 'zset' then
    local all = redis.call('ZRANGE', permits, 0, -1, 'WITHSCORES')
    entries = #all / 2
    for i = 1, #all, 2 do
      local m, score, n = all[i], tonumber(all[i + 1]), 0
      if #m >= 4 then
        local a, b, c, d = string.byte(m, #m - 3, #m)
        n = a + 256 * (b + 256 * (c + 256 * d))
      end
      if score <= edge then
        dead = dead + n
      else
        count = count + 1
        if n < 2147483648 then live = live + n else huge[#huge + 1] = n end
      end
      if score > now then ahead = ahead + 1 end
    end
  end
  local digest = ''
  local function wrong(is, right) return is ~= right and is ~= 'none' end
  if wrong(config, 'hash') or wrong(values, 'string') or wrong(records, 'zset') then
    for _, key in ipairs(KEYS) do
      digest = redis.sha1hex(digest .. (redis.call('DUMP', key) or ''))
    end
  end
  return { config, values, records, rate, every, type, values == 'string' and redis.call('GET', value),
    live, dead, count, ahead, digest, huge, entries }
end
local before = view(tonumber(ARGV[1]))
if not ARGV[3] then return { before, before } end
redis.call('DEL', unpack(KEYS))
local i = 3
while ARGV[i] do
  local n = tonumber(ARGV[i])
  redis.pcall(unpack(ARGV, i + 1, i + n))
  i = i + n + 1
end
return { before, view(tonumber(ARGV[2])) }`

// A view is the state that the onlooker returns.
type view struct {
	// of the configuration, of the value and of the permits that count
	types                     [3]string
	rate, interval, kind      string
	missing                   [3]bool // of these
	value                     string
	live, dead, living, ahead int64
	entries                   int64   // records, live or not
	huge                      []int64 // permits of other live records, of 2^31 permits or more
	permits, every            int64   // the rate, if the configuration is valid
	digest                    string
	// 1 the configuration is no hash, 2 the keys in use have wrong types
	wrong      int
	incomplete bool // a field of the configuration is missing
	fault      bool
}

func readView(r []any) (v view) {
	for i := range v.types {
		v.types[i], _ = r[i].(string)
	}
	for i, text := range []*string{&v.rate, &v.interval, &v.kind} {
		var there bool
		*text, there = r[3+i].(string)
		v.missing[i] = !there
	}
	v.value, _ = r[6].(string)
	v.live, v.dead, v.living, v.ahead = r[7].(int64), r[8].(int64), r[9].(int64), r[10].(int64)
	v.digest, _ = r[11].(string)
	v.entries = r[13].(int64)
	for _, n := range r[12].([]any) {
		v.huge = append(v.huge, n.(int64))
	}
	return v
}

// judge determines what a limiter, with or without a rate of its own, must do with the state.
func (v *view) judge(own bool) {
	switch {
	case v.types[0] != "hash" && v.types[0] != "none":
		v.wrong = 1
		return
	case v.types[1] != "string" && v.types[1] != "none", v.types[2] != "zset" && v.types[2] != "none":
		v.wrong = 2
	}
	texts := [3]string{v.rate, v.interval, v.kind}
	for i, missing := range v.missing {
		if missing {
			if v.incomplete = true; !own {
				v.fault = true
				return
			}
			texts[i] = [3]string{"10", "60000", "0"}[i]
		}
	}
	digits := func(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
	v.fault = !digits(strings.TrimPrefix(texts[0], "-")) || !digits(texts[1]) || strings.Trim(texts[1], "0") == "" ||
		texts[2] != "0" && texts[2] != "1"
	if v.fault {
		return
	}
	number := func(text string) int64 {
		if len(text) > 15 {
			return 1e15
		}
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	if !strings.HasPrefix(texts[0], "-") {
		v.permits = number(texts[0])
	}
	v.every = number(texts[1])
	v.believe()
}

// believe counts the permits of huge records: those above the rate are no grants, unless the other
// numbers leave room for them. Without a usable value that is at most the rate.
func (v *view) believe() {
	var doubtful int64
	for _, n := range v.huge {
		if n > v.permits {
			doubtful += n
		} else {
			v.live += n
		}
	}
	room := v.permits - v.live
	if n, err := strconv.ParseInt(v.value, 10, 64); err == nil && strconv.FormatInt(n, 10) == v.value && n <= 1e15 &&
		n > -1e14 {
		room -= n + v.dead
	}
	v.live += min(doubtful, max(0, room))
	v.huge = nil
}

// said returns the free permits according to the value key, if it is plausible. Below 0 it is,
// after the rate was lowered; it is compared with the records if these are few.
func (v view) said() (int64, bool) {
	n, err := strconv.ParseInt(v.value, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != v.value || n < 0 && v.living <= 256 || n > v.permits ||
		n+v.dead > v.permits {
		return 0, false
	}
	return n + v.dead, true
}

// free returns how many permits are free once the state is mended; a number below 0 if the records
// exceed the rate.
func (v view) free() int64 {
	if v.living == 0 {
		return v.permits
	}
	byRecords := v.permits - v.live
	if said, sure := v.said(); sure {
		return max(said, byRecords) // a deficit is added, a surplus stays free
	}
	return byRecords
}

// adds tells whether the value and the permits in the records, each as it is stored, make up the
// rate.
func (v view) adds(rate int64) bool {
	value, err := strconv.ParseInt(v.value, 10, 64)
	if err != nil {
		return v.value == "" && v.entries == 0 // the limiter was never used
	}
	sum := value + v.dead + v.live
	for _, n := range v.huge {
		sum += n
	}
	return sum == rate && value <= rate
}
