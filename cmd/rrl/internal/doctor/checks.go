package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// checks.go makes findings, with severity and advice, from the collected facts. It makes no calls.

// judge returns the findings of the state of a limiter.
func judge(v *survey.Survey) (all []Finding) {
	add := func(s Severity, code, text, advice string) {
		all = append(
			all, Finding{
				Severity: s,
				Code:     code,
				Name:     v.Name,
				Client:   v.Client,
				About:    true,
				Text:     text,
				Advice:   advice,
			},
		)
	}
	name := render.ShellName(v.Name)
	if wrong := v.WrongType(); wrong != "" {
		add(Error, "wrong-type", wrong+": every call fails (WRONGTYPE)",
			"find out which program uses the key: it, or the limiter, needs another name")
		return all
	}
	if v.Fault != nil {
		add(Error, "broken-config", "it can't be used: "+survey.Reason(v.Fault),
			"rrl set "+name+" RATE")
		return all
	}
	if v.Rate.Permits == 0 {
		add(Note, "refuses-all", "its rate is 0: every request is refused",
			"rrl set "+name+" RATE allows requests again")
	}
	if v.Doubtful.Records > 0 {
		add(
			Warning,
			"doubtful-records",
			render.Number(int64(v.Doubtful.Records), "record")+" of more permits than any grant: Redisson "+
				"stores a request for -1 permits as 4294967295, and grants it",
			"find out which Java client requests a negative number of permits; the next call of a Go client mends the records",
		)
	}
	for _, f := range v.Forms {
		if f.Odd != "" {
			records := render.Number(int64(f.Others.Records+f.Go.Records), "record")
			add(Warning, "unknown-records", fmt.Sprintf("%s in no known format: %s", records, f.Odd),
				"find out who writes to "+render.Printable(v.Keys[2].Name))
		}
	}
	if groups := v.Readers(); len(groups) > 1 {
		add(
			Error,
			"mixed-formats",
			"records are written as by "+strings.Join(groups, " and by ")+
				": no Redisson reads the right permits from both",
			"let Redisson clients of only one of these groups use the limiter, and set WithRecordFormat to their format in Go clients",
		)
	}
	if v.Rate.KeepAlive > 0 {
		for _, f := range v.Forms {
			switch {
			case f.Odd != "" || f.Others.Records == 0:
			case f.Format != rratelimiter.Redisson321:
				add(Error, "keep-alive-old-java",
					fmt.Sprintf("it has a keep-alive of %s, and %s clients use it: they don't "+
						"renew the limiter's TTL, so Redis removes the limiter while they use it",
						span.Text(v.Rate.KeepAlive), f.Format),
					"rrl set "+name+" "+rateArgument(v.Rate)+
						" --keep-alive 0, or update these clients to 3.38.0 or later")
			default:
				add(Note, "keep-alive-java",
					fmt.Sprintf("it has a keep-alive of %s, and Redisson uses it: releases before 3.38.0 "+
						"don't renew it", span.Text(v.Rate.KeepAlive)),
					"make sure that no Redisson is older than 3.38.0")
			}
		}
	}
	if v.Future.Records > 0 {
		level := Warning
		if v.Farthest.Sub(v.At) > v.Rate.Interval {
			level = Error
		}
		names := render.ShellNames(v.Name, v.Client)
		add(
			level,
			"future-records",
			fmt.Sprintf("%s in %s dated up to %s ahead of Redis's clock: they return that much too late",
				render.Number(v.Future.Permits, "permit"), render.Number(int64(v.Future.Records), "record"),
				render.Lasting(v.Farthest.Sub(v.At).Round(time.Millisecond))),
			"set the clock of the client right (rrl show "+names+" names the writers); rrl reset "+names+
				" --yes frees the permits now",
		)
	}
	if v.Client == "" {
		all = append(all, mortal(v)...)
	}
	if v.Client == "" && v.Keys[0].TTL == 0 && (v.Keys[1].TTL > 0 || v.Keys[2].TTL > 0) {
		add(
			Warning,
			"state-expires",
			"the keys with its grants have a TTL, its configuration has none: Redis may remove grants that still count",
			"find the program that sets the TTL of "+render.Printable(v.Keys[1].Name)+" or "+
				render.Printable(v.Keys[2].Name)+"; redis-cli PERSIST removes it",
		)
	}
	if records := v.Live.Records + v.Expired.Records; records > confirmable {
		add(Note, "many-records", render.Number(int64(records), "record")+": about "+
			fmt.Sprintf("%d MB", records/10_000)+
			", and an old Redisson expires them all in one call, which blocks Redis",
			"give Go clients WithGranularity")
	}
	return all
}

// mortal returns the finding of a limiter with a TTL that its use does not renew.
func mortal(v *survey.Survey) []Finding {
	if v.Keys[0].TTL == 0 || v.Rate.KeepAlive > 0 {
		return nil
	}
	keep := max(v.Rate.Interval, time.Hour)
	return []Finding{{Severity: Note, Code: "expires", Name: v.Name, About: true,
		Text: "it has a TTL (" + render.Lasting(v.Keys[0].TTL) + ") and no keep-alive: " +
			"unless a program renews the TTL, it ends while the limiter is used, and grants that still count are forgotten",
		Advice: "rrl set " + render.ShellName(v.Name) + " " + rateArgument(v.Rate) + " --keep-alive " +
			span.Text(keep) +
			", if no Redisson before 3.38.0 uses it"}}
}

// adding returns the finding that the figures of a limiter don't add up, and advises a repair if
// its result does no harm.
func adding(v *survey.Survey, would rratelimiter.Repaired) Finding {
	name := render.ShellNames(v.Name, v.Client)
	f := Finding{Name: v.Name, Client: v.Client, About: true, Advice: "rrl repair " + name + " --yes"}
	if would.Blocked > 0 {
		f.Advice += "; no permit is free then for " + render.Lasting(would.Blocked)
	}
	if reason := Harm(would, v); reason != "" {
		f.Advice = "do not repair it: " + reason + ". Find out who writes these records (rrl show " + name +
			"), then rrl reset " + name + " --yes"
	}
	records := v.Live.Records + v.Expired.Records
	switch {
	case v.Keys[1].Type == "none":
		f.Severity, f.Code = Warning, "value-missing"
		f.Text = "the free permits are missing, evicted perhaps: if Redisson calls next, it starts with all permits free"
	case !v.Readable:
		f.Severity, f.Code = Error, "value-garbled"
		f.Text = fmt.Sprintf("the free permits are stored as %q, no whole number: Redisson fails on it", v.Value)
	case records == 0 && v.Drift < 0:
		f.Severity, f.Code = Error, "stuck"
		f.Text = fmt.Sprintf(
			"%s of %s are free and there is no record: once too few are left, every call of Redisson fails for ever",
			render.Thousands(v.Free), render.Thousands(v.Rate.Permits),
		)
	case v.Drift < 0:
		f.Severity, f.Code = Error, "permits-lost"
		f.Text = WrongSum(v) + ": these permits are lost until it is repaired"
	default:
		f.Severity, f.Code = Warning, "permits-gained"
		f.Text = WrongSum(v) + ": if Redisson has released permits, this is intended until the records expire; " +
			"otherwise more than the rate is granted"
		if Harm(would, v) == "" {
			f.Advice = "if no Java service calls release: " + f.Advice
		}
	}
	return f
}

func crossing(name string) Finding {
	return Finding{Severity: Error, Code: "cross-slot", Name: name, About: true,
		Text:   "the keys that Redisson derives from this name are in different slots of the cluster: every call fails",
		Advice: "use another name: one without braces, or with a whole hash tag such as {tag}x"}
}

func orphaned(name string, clients int, limiter bool) Finding {
	f := Finding{Severity: Warning, Code: "orphaned-clients", Name: name, About: true,
		Text: fmt.Sprintf(
			"keys of %s without a live grant: mostly of Redisson instances that have ended, since each restart leaves some",
			render.Number(int64(clients), "client"),
		),
		Advice: "rrl gc --yes removes them"}
	if !limiter {
		f.Text += "; and there is no such limiter any more"
	}
	return f
}

func rateless(name string) Finding {
	return Finding{Severity: Warning, Code: "no-rate", Name: name, About: true,
		Text:   "there are grants and no rate: calls fail, and if a rate is set, the old grants count (Redisson's rename leaves them behind)",
		Advice: "rrl set " + render.ShellName(name) + " RATE, or rrl rm " + render.ShellName(name)}
}

// judge returns the findings of a server. shortest is the shortest known interval of its limiters,
// or 0; kept reports whether any has a TTL.
func (h host) judge(shortest time.Duration, kept bool) (all []Finding) {
	add := func(s Severity, code, text, advice string) {
		all = append(all, Finding{Severity: s, Code: code, Server: h.where, Text: text, Advice: advice})
	}
	off := h.ahead.Abs() - h.error
	direction := "ahead of"
	if h.ahead > 0 {
		direction = "behind"
	}
	said := fmt.Sprintf(
		"this host's clock is %s %s Redis's", render.Lasting(h.ahead.Abs().Round(time.Millisecond)), direction,
	)
	const clocks = "keep clocks in step (NTP), or use WithServerTime in Go"
	switch {
	case off >= time.Second || shortest > 0 && off >= 50*time.Millisecond && off > shortest/10:
		add(Error, "clock-skew", said+": a client on this host frees permits too early or too late by this time",
			clocks)
	case off >= 50*time.Millisecond:
		add(Warning, "clock-skew", said, clocks)
	}
	if version := h.info["redis_version"]; version != "" && before(version, 6, 2) {
		add(Error, "old-server", "Redis "+version+": limiters need 6.2 or later", "update Redis")
	}
	if h.info["role"] == "slave" {
		add(
			Error, "replica", "this is a replica: it can't grant anything, and what it shows may be old",
			"give the address of the master in --redis",
		)
	}
	limit, _ := strconv.ParseInt(h.info["maxmemory"], 10, 64)
	used, _ := strconv.ParseInt(h.info["used_memory"], 10, 64)
	policy := h.info["maxmemory_policy"]
	const better = "set maxmemory-policy to noeviction, or give limiters a Redis of their own"
	switch {
	case limit == 0:
	case strings.HasPrefix(policy, "allkeys"):
		add(
			Error,
			"eviction",
			fmt.Sprintf("maxmemory-policy %s: when Redis is full (%s used) it drops limiters, and their limits are forgotten",
				policy, percent(used, limit)),
			better,
		)
	case strings.HasPrefix(policy, "volatile") && kept:
		add(
			Warning,
			"eviction",
			fmt.Sprintf("maxmemory-policy %s: when Redis is full (%s used) it drops limiters with a TTL or keep-alive",
				policy, percent(used, limit)),
			better,
		)
	case used > limit/10*9:
		add(
			Warning, "memory",
			fmt.Sprintf("%s of maxmemory is used: once it is full, no permit is granted any more",
				percent(used, limit)),
			"give Redis more memory, or give Go clients WithGranularity",
		)
	}
	if h.settings["cluster-require-full-coverage"] == "yes" && h.info["cluster_enabled"] == "1" {
		add(
			Note,
			"full-coverage",
			"cluster-require-full-coverage is yes: when the slots of one node are lost, limiters on all "+
				"nodes stop",
			"set it to no if the others should go on",
		)
	}
	if save, known := h.settings["save"]; known && save == "" && h.info["aof_enabled"] == "0" {
		add(Note, "no-persistence", "nothing is written to disk: after a restart there is no limiter",
			"let services set the rate (WithRate, trySetRate), or turn persistence on")
	}
	return all
}

func percent(part, whole int64) string {
	return fmt.Sprintf("%.0f %%", float64(part)/float64(whole)*100)
}

// before reports whether a version is older than another.
func before(version string, major, minor int) bool {
	parts := append(strings.Split(version, "."), "0")
	first, err1 := strconv.Atoi(parts[0])
	second, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (first < major || first == major && second < minor)
}

// rateArgument returns the part of a rate that rrl set takes as one argument.
func rateArgument(r rratelimiter.Rate) string {
	r.KeepAlive, r.Type = 0, rratelimiter.Overall
	return r.String()
}

// WrongSum returns how free permits and records differ from the rate.
func WrongSum(v *survey.Survey) string {
	in := render.Thousands(v.Live.Permits + v.Expired.Permits)
	switch {
	case v.Keys[1].Type == "none":
		return fmt.Sprintf("the free permits are missing, with %s in records", in)
	case !v.Readable:
		return fmt.Sprintf("the free permits are stored as %q, no whole number", v.Value)
	}
	more, drift := "more", v.Drift
	if drift < 0 {
		more, drift = "less", -drift
	}
	return fmt.Sprintf("%s stored as free + %s in records is %s %s than %s",
		render.Thousands(v.Free), in, render.Thousands(drift), more, render.Thousands(v.Rate.Permits))
}

// Harm returns why the result of a repair would do harm; "" if it would not. Live records that hold
// more than twice the rate, or leave nothing free for longer than an interval and the time that
// they may be dated ahead, are not grants of this rate. Expired records do not count: a repair
// removes them first.
func Harm(did rratelimiter.Repaired, v *survey.Survey) string {
	if !did.Changed || did.Blocked-survey.Slack(v.Rate) <= v.Rate.Interval && v.Live.Permits <= 2*v.Rate.Permits {
		return ""
	}
	hold := "hold"
	if v.Live.Records == 1 {
		hold = "holds"
	}
	return fmt.Sprintf(
		"%s %s %s at a rate of %v: the limiter would have no free permit for %s",
		render.Number(int64(v.Live.Records), "live record"), hold, render.Number(v.Live.Permits, "permit"), v.Rate,
		render.Lasting(max(did.Blocked, time.Millisecond)),
	)
}
