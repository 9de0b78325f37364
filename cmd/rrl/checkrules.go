package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
)

// checkrules.go is the subcommand check-rules, which needs no Redis.

func newCheckRules() *cobra.Command {
	var keys []string
	var schema, convert bool
	cmd := &cobra.Command{
		Use:   "check-rules FILE | FOLDER | --schema",
		Short: "Check a file of limits for HTTP requests or for Envoy, and print how it is understood",
		Long: `check-rules reads a file of limits for HTTP requests, as services that use the package httplimit/rules
do, or for Envoy, as rrl rls does, and prints its limits. It needs no Redis. If the file has faults it prints each of
them as FILE:LINE: fault, and the exit code is 1. FILE is - for the standard input. Of a FOLDER it reads all files that
end with .yaml or .yml.

The file is YAML:

  exempt: 10.0.0.0/8          # clients that no limit applies to
  skip: [/healthz, /static/]  # paths that no limit applies to
  ignore-case: false          # /search and /SEARCH are two paths
  limits:
    per-second:
      key: address            # or: path, route, header NAME, all
      rate: 10/s
    search:
      key: header X-API-Key or address     # the address if the header is missing
      rate: 600/m
      cost: 5                 # a request takes 5 of the 600
      paths: [/search, /export/]
      methods: [GET, POST]
      exempt: [192.0.2.7]
    per-user-and-path:
      key: [header X-User, path]           # both together
      rate: 100/s             # or another one by a field that a gateway sets:
      plans: {header: X-Plan, rates: {pro: 500/s, internal: unlimited}}
      hosts: [shop.example.com, "*.example.org"]
      lease: 100ms            # decides from memory: see rratelimiter.WithLease
      penalty: 10m            # a key that is refused stays so for 10 minutes
      shadow: true            # counts, but refuses nothing
    per-month:
      key: header X-API-Key
      quota: 20000/month      # or day, week
      from: 15                # the billing date
      time-zone: Europe/Berlin

A file that begins with "domain:" has the format of envoyproxy/ratelimit. For such files a second table tells what
becomes of each field. --convert prints the domains in the format above instead.

A service may have keys of its own, such as the tenant; --own-key names them. rrl rls --help has an example for Envoy.

--schema prints the JSON Schema of such a file, for editors, which find most faults while you write. It reads no file.`,
		Example: `  rrl check-rules limits.yaml
  rrl check-rules --own-key tenant --own-key user limits.yaml
  rrl check-rules --convert /etc/ratelimit/config > envoy.yaml
  rrl check-rules --schema > limits.schema.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if schema && (len(args) > 0 || len(keys) > 0 || convert) {
				return errors.New("check-rules --schema takes no file, no --own-key and no --convert; see rrl check-rules --help")
			}
			if !schema && len(args) != 1 {
				return errors.New("check-rules takes the name of one file or folder; see rrl check-rules --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				_, err := io.WriteString(cmd.OutOrStdout(), rules.Schema())
				return err
			}
			f, err := rulesOf(cmd.InOrStdin(), args[0], keys)
			if faults := (rules.Faults{}); errors.As(err, &faults) {
				fmt.Fprintln(cmd.ErrOrStderr(), connect.LastDefence(err.Error()))
				return exit{code: 1}
			}
			if err != nil {
				return err
			}
			if convert {
				return converted(cmd.OutOrStdout(), f)
			}
			o := &render.Output{Out: cmd.OutOrStdout()}
			if f.Limits != nil {
				limitsTable(f.Limits).Write(o)
			}
			if f.Domains != nil {
				domainsTable(f.Domains).Write(o)
			}
			if f.Findings != nil {
				o.Say("")
				findingsTable(f.Findings).Write(o)
			}
			return o.Failed
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of such a file")
	cmd.Flags().BoolVar(&convert, "convert", false, "print files of envoyproxy/ratelimit in the format of this project")
	cmd.Flags().StringSliceVar(&keys, "own-key", nil, "`word` for a key that the service has, beside the built-in ones")
	return cmd
}

// rulesOf reads a file, a folder, or the standard input.
func rulesOf(in io.Reader, path string, keys []string) (rules.File, error) {
	if path != "-" {
		return rules.Load(path, keys...)
	}
	data, err := input(in, path)
	if err != nil {
		return rules.File{}, err
	}
	return rules.ParseFile(path, data, keys...)
}

// converted prints the domains of files of envoyproxy/ratelimit.
func converted(out io.Writer, f rules.File) error {
	if f.Findings == nil || f.Limits != nil {
		return errors.New("--convert: a file has the format of this project already; see rrl check-rules --help")
	}
	text, err := rules.Format(f.Domains)
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// findingsTable has a row for each field of files of envoyproxy/ratelimit.
func findingsTable(findings []rules.Finding) render.Table {
	t := render.Table{Rows: [][]string{{"field of envoyproxy/ratelimit", "first in", "here", "as"}}}
	for _, f := range findings {
		what := "works"
		if f.Ignored {
			what = "ignored"
		}
		t.Rows = append(t.Rows, visible([]string{f.Field, fmt.Sprintf("%s:%d", f.File, f.Line), what, f.Why}))
	}
	return t
}

// limitsTable has a row for each limit, and a column of options if a limit has one.
func limitsTable(limits []rules.Limit) render.Table {
	t := render.Table{
		Right: map[int]bool{1: true, 2: true},
		Rows:  [][]string{{"limit", "rate", "cost", "key", "methods", "paths", "exempt"}},
	}
	some := slices.ContainsFunc(limits, func(l rules.Limit) bool { return len(limitOptions(l)) > 0 })
	if some {
		t.Rows[0] = append(t.Rows[0], "options")
	}
	for _, l := range limits {
		var exempt []string
		for _, network := range l.Exempt {
			text := network.String()
			if network.IsSingleIP() {
				text = network.Addr().String()
			}
			exempt = append(exempt, text)
		}
		rate := l.Rate.String()
		if l.Quota.Period != "" {
			rate = l.Quota.String()
		}
		cells := []string{
			l.Name, rate, strconv.FormatInt(l.Cost, 10), l.Key, orElse(l.Methods, "all"), orElse(l.Paths, "all"),
			orElse(exempt, "none"),
		}
		if some {
			cells = append(cells, orElse(limitOptions(l), "none"))
		}
		t.Rows = append(t.Rows, visible(cells))
	}
	return t
}

// limitOptions returns the fields of a limit that few limits have.
func limitOptions(l rules.Limit) (options []string) {
	for _, plan := range slices.Sorted(maps.Keys(l.Plans.Rates)) {
		options = append(options, l.Plans.Header+":"+plan+"="+rateText(l.Plans.Rates[plan]))
	}
	if l.Quota.From != "" {
		options = append(options, "from="+l.Quota.From)
	}
	if l.Quota.Zone != nil {
		options = append(options, "time-zone="+l.Quota.Zone.String())
	}
	if len(l.Hosts) > 0 {
		options = append(options, "hosts="+strings.Join(l.Hosts, ","))
	}
	if len(l.Skip) > 0 {
		options = append(options, "skip="+strings.Join(l.Skip, ","))
	}
	if l.CostAfter != "" {
		options = append(options, "cost-after="+l.CostAfter)
	}
	if l.Lease > 0 {
		options = append(options, "lease="+l.Lease.String())
	}
	if l.Penalty > 0 {
		options = append(options, "penalty="+l.Penalty.String())
	}
	if l.Shadow {
		options = append(options, "shadow")
	}
	return options
}

func rateText(r rratelimiter.Rate) string {
	if r == rratelimiter.Unlimited {
		return "unlimited"
	}
	return r.String()
}

// domainsTable has a row for each descriptor with a rate or options.
func domainsTable(domains []rules.Domain) render.Table {
	t := render.Table{Right: map[int]bool{2: true}, Rows: [][]string{{"domain", "descriptor", "rate", "options"}}}
	for _, d := range domains {
		t.Rows = append(t.Rows, descriptorRows(d.Name, nil, d.Descriptors)...)
	}
	return t
}

// descriptorRows returns the rows of descriptors that begin with these entries.
func descriptorRows(domain string, entries []string, descriptors []rules.Descriptor) (rows [][]string) {
	for _, d := range descriptors {
		entry := d.Key
		if d.Value != "" {
			entry += "=" + d.Value
		}
		all := append(slices.Clone(entries), entry)
		if options := optionsOf(d); d.HasRate || len(options) > 0 {
			rate := cmp.Or(d.RateText(), "-")
			rows = append(rows, visible([]string{domain, strings.Join(all, ", "), rate, orElse(options, "none")}))
		}
		rows = append(rows, descriptorRows(domain, all, d.Following)...)
	}
	return rows
}

// optionsOf returns the options of a descriptor.
func optionsOf(d rules.Descriptor) (options []string) {
	if d.Postpaid {
		options = append(options, "postpaid")
	}
	if d.Shadow {
		options = append(options, "shadow")
	}
	if d.Shared {
		options = append(options, "shared")
	}
	if d.Lease > 0 {
		options = append(options, "lease="+d.Lease.String())
	}
	if d.Name != "" {
		options = append(options, "name="+d.Name)
	}
	if d.ValueToMetric {
		options = append(options, "value-to-metric")
	}
	if d.DetailedMetric {
		options = append(options, "detailed-metric")
	}
	if len(d.Replaces) > 0 {
		options = append(options, "replaces="+strings.Join(d.Replaces, ","))
	}
	return options
}

// visible escapes what a terminal would not show.
func visible(cells []string) []string {
	for i, cell := range cells {
		cells[i] = render.Visible(cell)
	}
	return cells
}

// orElse joins words, or returns what stands for none.
func orElse(words []string, none string) string {
	if len(words) == 0 {
		return none
	}
	return strings.Join(words, " ")
}
