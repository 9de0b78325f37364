package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/response"
)

// parse.go parses a file of limits. It finds all errors in the file, each with its line. It knows
// the form of a value. Whether a value is in bounds is known to the constructors of the limiters,
// which it calls.

// A Limit is a limit in a file.
type Limit struct {
	Name string
	// text in the file, such as "header X-API-Key or address"; a comma separates the elements of a
	// list
	Key   string
	Rate  rratelimiter.Rate
	Plans Plans // other rates
	Quota Quota // instead of a rate
	Cost  int64
	// name of the field of the response that has the cost; "": the cost is Cost
	CostAfter string
	Paths     []string       // nil: all
	Methods   []string       // nil: all
	Hosts     []string       // in lower case; nil: all
	Exempt    []netip.Prefix // includes the networks that are exempt from all limits
	Skip      []string       // paths to which no limit of the file applies
	Lease     time.Duration  // of rratelimiter.WithLease; 0: none
	Penalty   time.Duration  // of httplimit.Limit.Penalty; 0: none
	Shadow    bool           // the limit refuses no request

	IgnoreCase bool // the case of letters in paths does not count: the field ignore-case of the file

	key [][]string // lists of alternative words, to be joined; nil: all requests share the rate
}

// Plans are rates of a limit by the value of a header field. Requests with any other value have the
// rate of the limit.
type Plans struct {
	Header string // "": the limit has no plans
	// rratelimiter.Unlimited: requests with this value are not limited
	Rates map[string]rratelimiter.Rate
}

// A Fault is one error in a file.
type Fault struct {
	File string
	Line int // from 1
	Text string
}

// Error returns "FILE:LINE: text".
func (f Fault) Error() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text) }

// Faults has all errors in a file, in the order of their lines. It has at least one.
type Faults []Fault

// Error returns the text of all errors, one per line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Error()
	}
	return strings.Join(lines, "\n")
}

const headerWord = "header "

var (
	validName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	validHost   = regexp.MustCompile(`^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	fileFields  = []string{"exempt", "skip", "ignore-case", "limits", "domains"} // schema.json has the same
	limitFields = []string{
		"key", "rate", "plans", "quota", "from", "time-zone", "cost", "cost-after", "paths", "methods", "hosts",
		"exempt", "lease", "penalty", "shadow",
	}
	planFields = []string{"header", "rates"}
	allMethods = []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}
)

// A File has the content of a file, or of the files in a folder. Each file has at least one of the
// two sections, or the format of envoyproxy/ratelimit, which is a domain.
type File struct {
	Limits   []Limit   // in their order; nil: no file has the field "limits"
	Domains  []Domain  // in their order; nil: no file has the field "domains" or "domain"
	Findings []Finding // about the fields of files in the format of envoyproxy/ratelimit
}

// Where the formats are described.
const (
	httpForm  = "the format is in docs/guide/guard-an-http-api.md"
	envoyForm = "the format is in docs/guide/serve-envoy.md"
	theirForm = "a file that begins with \"domain:\" has the format of envoyproxy/ratelimit; " +
		"docs/guide/from-envoyproxy-ratelimit.md says what of it works"
)

// Parse returns the limits in the content of a file, in their order. keys are the words for the
// keys of the program. The error is of type Faults, and contains the name of the file. Parse calls
// the same constructors as Watch, so Watch accepts what Parse accepts, unless the options of its
// client do not go together with the file.
func Parse(file string, data []byte, keys ...string) ([]Limit, error) {
	return Config{}.limits(file, []source{{file, string(data)}}, keys)
}

// ParseFile is Parse for both sections of a file, each of which may be missing, and for files of
// envoyproxy/ratelimit.
func ParseFile(file string, data []byte, keys ...string) (File, error) {
	return Config{}.parse([]source{{file, string(data)}}, keys)
}

// limits is parse for a file or a folder that must have limits.
func (c Config) limits(path string, sources []source, keys []string) ([]Limit, error) {
	f, err := c.parse(sources, keys)
	if err == nil && f.Limits == nil {
		err = Faults{{path, 1, noLimits}}
	}
	return f.Limits, err
}

// parse parses files with these words for the keys of the program.
func (c Config) parse(sources []source, keys []string) (f File, err error) {
	p := &parser{keys: keys, config: c, places: map[[2]string]string{}, merges: map[*yaml.Node][]*yaml.Node{}}
	if p.config.Client == nil {
		p.config.Client = rratelimiter.NewClient(unconnected{})
	}
	for _, s := range sources {
		faults, findings := len(p.faults), len(p.findings)
		p.file = s.file
		p.parse(&f, []byte(s.text))
		slices.SortStableFunc(p.faults[faults:], func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
		slices.SortStableFunc(p.findings[findings:], func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
	}
	if f.Findings = p.findings; len(p.faults) > 0 {
		return File{}, p.faults
	}
	return f, nil
}

// An unconnected stands for a Redis client where parameters are only checked: a constructor makes
// no call.
type unconnected struct{ rratelimiter.Redis }

const (
	noLimits  = "the file has no field \"limits\"; to set no limits, write \"limits: {}\""
	noDomains = "the file has no field \"domains\"; to set no limits, write \"domains: {}\""
)

type parser struct {
	file   string
	keys   []string
	config Config // makes limiters, to check their parameters; it has a client and a Redis
	faults Faults

	findings []Finding
	places   map[[2]string]string // where each limit and each domain stands

	count    int                         // descriptors so far
	names    map[string]bool             // names of descriptors of the domain
	replaced []*yaml.Node                // names in replaces of the domain
	merges   map[*yaml.Node][]*yaml.Node // see merged
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, Fault{p.file, line, fmt.Sprintf(format, args...)})
}

// once adds a fault if a limit or a domain stands in another file, too.
func (p *parser) once(line int, what, name string) {
	if first := p.places[[2]string{what, name}]; first != "" {
		p.fault(line, "the %s %q is in %s already", what, name, first)
		return
	}
	p.places[[2]string{what, name}] = fmt.Sprintf("%s:%d", p.file, line)
}

// parse adds the content of a file.
func (p *parser) parse(f *File, data []byte) {
	document := p.document(data)
	if document == nil {
		return
	}
	if isTheirs(document) {
		f.Domains = append(f.Domains, p.theirs(document))
		return
	}
	top := p.fields(document, "the file", fileFields, httpForm+", and of domains in docs/guide/serve-envoy.md")
	if top == nil {
		return
	}
	var exempt []netip.Prefix
	if node := top["exempt"]; node != nil {
		exempt = p.networks(node)
	}
	var skip []string
	if node := top["skip"]; node != nil {
		skip = p.paths(node, "skip")
	}
	ignoreCase := false
	if node := top["ignore-case"]; node != nil {
		ignoreCase = p.truth(node, "ignore-case")
	}
	if top["limits"] == nil && top["domains"] == nil {
		p.fault(document.Line, "%s", noLimits)
	}
	if node := top["limits"]; node != nil {
		f.Limits = append([]Limit{}, f.Limits...)
		p.named(node, "limits", func(name, value *yaml.Node) {
			l := p.limit(name, value)
			l.Exempt, l.Skip, l.IgnoreCase = slices.Concat(exempt, l.Exempt), skip, ignoreCase
			f.Limits = append(f.Limits, l)
		})
	}
	if node := top["domains"]; node != nil {
		f.Domains = append(append([]Domain{}, f.Domains...), p.domains(node)...)
	}
}

// document returns the only document in the content of a file; nil after an error.
func (p *parser) document(data []byte) *yaml.Node {
	var document, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	err := documents.Decode(&document)
	if err == io.EOF || err == nil && (len(document.Content) == 0 || document.Content[0].Tag == "!!null") {
		p.fault(1, "the file is empty; to set no limits, write limits: {}")
		return nil
	}
	if err == nil {
		err = documents.Decode(&second)
	}
	if err == nil {
		p.fault(second.Line, "a second document begins here: all limits must be in one")
		return nil
	}
	if err != io.EOF {
		p.syntax(data, err)
		return nil
	}
	return document.Content[0]
}

// named calls each for the names and the values of a section.
func (p *parser) named(section *yaml.Node, what string, each func(name, value *yaml.Node)) {
	if section.Kind != yaml.MappingNode {
		p.fault(
			section.Line, "the field %q must have the name of each %s, with its content below the name", what,
			strings.TrimSuffix(what, "s"),
		)
		return
	}
	for i := 0; i < len(section.Content); i += 2 {
		name := section.Content[i]
		switch {
		case what == "domains" && name.Value == "":
			p.fault(name.Line, "the name of a domain is empty")
		case what == "limits" && !validName.MatchString(name.Value):
			p.fault(name.Line, "the name %q must have 1 to 64 letters, digits, and _.-, a letter or digit first",
				name.Value)
		default:
			p.once(name.Line, strings.TrimSuffix(what, "s"), name.Value)
		}
		before := len(p.faults)
		each(name, resolved(section.Content[i+1]))
		p.prefix(before, name.Value)
	}
}

// prefix puts a name before the texts of the last Faults.
func (p *parser) prefix(from int, name string) {
	if !validName.MatchString(name) {
		name = strconv.Quote(name)
	}
	for i := range p.faults[from:] {
		f := &p.faults[from+i]
		f.Text = name + ": " + f.Text
	}
}

// syntax adds the error of the YAML parser.
func (p *parser) syntax(data []byte, err error) {
	at := (*yaml.LoadError)(nil)
	if !errors.As(err, &at) {
		p.fault(1, "no valid YAML: %v", err)
		return
	}
	line, text := at.Mark.Line, at.Message
	if line == 0 { // a character that YAML does not allow: only its offset is known
		line = 1 + bytes.Count(data[:min(at.Mark.Index, len(data))], []byte("\n"))
	}
	if begin := at.ContextMark.Line; begin > 0 && begin < line {
		text += fmt.Sprintf(" %s that begins in line %d", at.ContextMsg, begin)
	}
	p.fault(line, "no valid YAML: %s", text)
}

// valid adds a fault if the limiter of a claim was made with invalid parameters.
func (p *parser) valid(line int, field string, c httplimit.Claim) {
	err := c.Err()
	if err == nil {
		return
	}
	text := err.Error()
	for _, kind := range []error{rratelimiter.ErrInvalidOption, rratelimiter.ErrInvalidRate} {
		if _, reason, found := strings.Cut(text, kind.Error()+": "); found {
			text = reason
		}
	}
	p.fault(line, "%s: %s", field, text)
}

// validRate adds a fault if no limiter can have a rate with the options.
func (p *parser) validRate(line int, field string, rate rratelimiter.Rate, opts ...rratelimiter.LimiterOption) {
	p.valid(line, field, httplimit.Named(p.config.Client, "", "", rate, opts...))
}

// limit parses one limit.
func (p *parser) limit(name, node *yaml.Node) Limit {
	l := Limit{Name: name.Value, Cost: 1}
	fields := p.fields(node, "a limit", limitFields, httpForm)
	if fields == nil {
		return l
	}
	if node := fields["key"]; node != nil {
		l.Key, l.key = p.key(node)
	} else {
		p.fault(name.Line, "it has no field \"key\"; if all requests share one rate, write \"key: all\"")
	}
	quota := quotaOf(fields)
	switch {
	case quota != "":
		l.Quota = p.quota(fields, quota)
	case fields["rate"] != nil:
		l.Rate = p.rate(fields["rate"])
	default:
		p.fault(name.Line, "it has no rate")
	}
	for _, field := range []string{"from", "time-zone"} {
		if node := fields[field]; node != nil && quota == "" {
			p.fault(node.Line, "%s: only a limit with a quota has it", field)
		}
	}
	if node := fields["plans"]; node != nil {
		l.Plans = p.plans(node)
	}
	if node := fields["cost"]; node != nil {
		l.Cost = p.cost(node, fields["cost-after"] != nil, l.rates()...)
		if n := l.Quota.Permits; n > 0 && l.Cost > n {
			p.fault(node.Line, "cost: %d is more than the quota %v", l.Cost, l.Quota)
		}
	}
	if node := fields["lease"]; node != nil {
		l.Lease = p.lease(node, l.rates()...)
	}
	if node := fields["penalty"]; node != nil {
		if l.Penalty = p.duration(node, "penalty"); l.Penalty > 0 {
			p.validRate(node.Line, "penalty", rratelimiter.Rate{Permits: 1, Interval: l.Penalty}) // as Limit.Penalty
		}
	}
	if node := fields["cost-after"]; node != nil {
		if text, ok := p.value(node, "cost-after"); ok {
			l.CostAfter = text
			p.header(node.Line, "cost-after", text)
		}
		if l.Penalty > 0 && quota != "" {
			p.fault(node.Line, "cost-after: a limit with a quota has either this or a penalty")
		}
	}
	if node := fields["shadow"]; node != nil {
		l.Shadow = p.truth(node, "shadow")
	}
	if node := fields["paths"]; node != nil {
		l.Paths = p.paths(node, "paths")
	}
	if node := fields["hosts"]; node != nil {
		l.Hosts = p.hosts(node)
	}
	if node := fields["methods"]; node != nil {
		for _, v := range p.values(node, "methods") {
			if !slices.Contains(allMethods, v.Value) {
				p.fault(v.Line, "the method %q is none of %s", v.Value, strings.Join(allMethods, ", "))
			}
			l.Methods = append(l.Methods, v.Value)
		}
	}
	if node := fields["exempt"]; node != nil {
		l.Exempt = p.networks(node)
	}
	return l
}

// rates returns all rates of the limit that limit requests.
func (l Limit) rates() (all []rratelimiter.Rate) {
	if l.Rate != (rratelimiter.Rate{}) { // a quota, or a fault
		all = append(all, l.Rate)
	}
	for _, plan := range slices.Sorted(maps.Keys(l.Plans.Rates)) {
		if rate := l.Plans.Rates[plan]; rate != rratelimiter.Unlimited {
			all = append(all, rate)
		}
	}
	return all
}

// plans parses the field plans.
func (p *parser) plans(node *yaml.Node) (plans Plans) {
	fields := p.fields(node, "plans", planFields, httpForm)
	if fields == nil {
		return plans
	}
	if header := fields["header"]; header == nil {
		p.fault(node.Line, "plans: it has no field \"header\"")
	} else if text, ok := p.value(header, "header"); ok {
		plans.Header = text
		p.header(header.Line, "plans", text)
	}
	rates := fields["rates"]
	if rates == nil || rates.Kind != yaml.MappingNode || len(rates.Content) == 0 {
		p.fault(node.Line, "plans: the field \"rates\" must have a rate for each value of the header")
		return plans
	}
	plans.Rates = map[string]rratelimiter.Rate{}
	for i := 0; i < len(rates.Content); i += 2 {
		name := rates.Content[i]
		if _, twice := plans.Rates[name.Value]; twice || name.Value == "" {
			p.fault(name.Line, "plans: the value %q is empty, or has two rates", name.Value)
		}
		plans.Rates[name.Value] = p.rateOrUnlimited(resolved(rates.Content[i+1]))
	}
	return plans
}

// hosts parses names of hosts.
func (p *parser) hosts(node *yaml.Node) (hosts []string) {
	for _, v := range p.values(node, "hosts") {
		host := strings.ToLower(v.Value)
		if !validHost.MatchString(host) {
			p.fault(v.Line, "hosts: %q is neither a name such as shop.example.com, without a port, nor *.example.com",
				v.Value)
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// paths parses a list of paths.
func (p *parser) paths(node *yaml.Node, what string) (paths []string) {
	for _, v := range p.values(node, what) {
		if p.path(v) {
			paths = append(paths, v.Value)
		}
	}
	return paths
}

// fields returns the values of a mapping by their names; nil if the node is not a mapping. form
// says where the format is described.
func (p *parser) fields(node *yaml.Node, what string, known []string, form string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		p.fault(node.Line, "%s must have fields, one a line: %s", what, strings.Join(known, ", "))
		return nil
	}
	fields, lines := map[string]*yaml.Node{}, map[string]int{}
	for i := 0; i < len(node.Content); i += 2 {
		name, value := node.Content[i], resolved(node.Content[i+1])
		switch first := lines[name.Value]; {
		case !slices.Contains(known, name.Value):
			if form != theirForm && slices.Contains(theirFields, name.Value) {
				form = theirForm
			}
			p.fault(name.Line, "unknown field %q; known are %s; %s", name.Value, strings.Join(known, ", "), form)
		case first > 0:
			p.fault(name.Line, "%s is in line %d already", name.Value, first)
		default:
			fields[name.Value], lines[name.Value] = value, name.Line
		}
	}
	return fields
}

// values returns the values of a list, or a single value.
func (p *parser) values(node *yaml.Node, what string) []*yaml.Node {
	list := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		list = node.Content
	}
	if len(list) == 0 {
		p.fault(node.Line, "%s is empty: write a value, or leave the field out if it is optional", what)
	}
	var values []*yaml.Node
	for _, v := range list {
		if v = resolved(v); v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
			p.fault(v.Line, "%s must be a text, or a list of texts", what)
		} else {
			values = append(values, v)
		}
	}
	return values
}

// value returns the text of a single value.
func (p *parser) value(node *yaml.Node, what string) (string, bool) {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
		p.fault(node.Line, "%s must be a single value", what)
		return "", false
	}
	return node.Value, true
}

// truth returns the value of a field that is true or false.
func (p *parser) truth(node *yaml.Node, what string) bool {
	if node.Kind != yaml.ScalarNode || node.Value != "true" && node.Value != "false" {
		p.fault(node.Line, "%s must be true or false", what)
	}
	return node.Value == "true"
}

// key parses a key. It returns the text and the words of the key.
func (p *parser) key(node *yaml.Node) (string, [][]string) {
	var texts []string
	var key [][]string
	values := p.values(node, "key")
	for _, v := range values {
		text := strings.Join(strings.Fields(v.Value), " ")
		texts = append(texts, text)
		if text == "all" && len(values) == 1 && !slices.Contains(p.keys, text) {
			return text, nil
		}
		words := strings.Split(text, " or ")
		for _, word := range words {
			p.word(v.Line, word)
		}
		key = append(key, words)
	}
	return strings.Join(texts, ", "), key
}

// word checks a word of a key.
func (p *parser) word(line int, word string) {
	if slices.Contains(p.keys, word) || slices.Contains([]string{"address", "path", "route"}, word) {
		return
	}
	name, header := strings.CutPrefix(word, headerWord)
	switch {
	case word == "all":
		p.fault(line, "key: all cannot be combined with other keys")
	case header:
		p.header(line, "key", name)
	default:
		known := slices.Concat([]string{"address", "path", "route", "header NAME", "all"}, p.keys)
		p.fault(line, "key: %q is none of %s", word, strings.Join(known, ", "))
	}
}

// header checks the name of a header that a field names.
func (p *parser) header(line int, field, name string) {
	switch {
	case strings.EqualFold(name, "Host"):
		p.fault(line, "%s: no request has the header Host; Go keeps its value elsewhere", field)
	case !response.ValidField.MatchString(name):
		p.fault(line, "%s: %q is no name of a header", field, name)
	}
}

func (p *parser) rate(node *yaml.Node) rratelimiter.Rate {
	text, ok := p.value(node, "rate")
	if !ok {
		return rratelimiter.Rate{}
	}
	rate, err := rratelimiter.ParseRate(text)
	switch {
	case ofCalendar(node):
		p.fault(node.Line,
			"rate: %q: a month or a year has no fixed length, so only a limit itself can have it, as its quota", text)
	case err != nil:
		calendar := ""
		if lower := strings.ToLower(text); strings.Contains(lower, "month") || strings.Contains(lower, "year") {
			calendar = "; a month or a year of the calendar is 5/month or 5/year"
		}
		reason := strings.TrimPrefix(err.Error(), rratelimiter.ErrInvalidRate.Error()+": ")
		p.fault(node.Line, "rate: %s%s", reason, calendar)
		return rratelimiter.Rate{}
	case rate.Type == rratelimiter.PerClient:
		p.fault(node.Line, "rate: %q: \"per client\" would mean per process; use key to give each client its own rate",
			text)
	default:
		p.validRate(node.Line, "rate", rate)
	}
	return rate
}

// rateOrUnlimited parses a rate, or the word unlimited.
func (p *parser) rateOrUnlimited(node *yaml.Node) rratelimiter.Rate {
	if node.Kind == yaml.ScalarNode && node.Value == unlimited {
		return rratelimiter.Unlimited
	}
	return p.rate(node)
}

// cost parses a cost, which is at most the number of permits of each rate that is known. It is 0
// only if the response tells another one (after).
func (p *parser) cost(node *yaml.Node, after bool, rates ...rratelimiter.Rate) int64 {
	text, ok := p.value(node, "cost")
	if !ok {
		return 1
	}
	cost, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil && cost == 0 && after:
		return 0
	case err != nil || cost < 1:
		p.fault(node.Line, "cost: %q is no whole number from 1 on, or 0 with cost-after", text)
		return 1
	}
	for _, rate := range rates {
		if rate.Permits > 0 && cost > rate.Permits {
			p.fault(node.Line, "cost: %d is more than the rate %v ever grants", cost, rate)
		}
	}
	return cost
}

// path checks a path.
func (p *parser) path(node *yaml.Node) bool {
	text := node.Value
	clean := path.Clean(text)
	switch {
	case !strings.HasPrefix(text, "/"):
		p.fault(node.Line, "the path %q does not begin with a slash", text)
	case strings.ContainsAny(text, "*{}?#"):
		p.fault(
			node.Line, "the path %q must not contain * { } ? or #; a path that ends with a slash includes all paths below it",
			text,
		)
	case strings.ContainsAny(text, `;%\`):
		p.fault(
			node.Line,
			"the path %q must not contain ; %% or \\: write the path that servers read, without parameters and escapes",
			text,
		)
	case text != clean && (clean == "/" || text != clean+"/"):
		p.fault(node.Line, "write the path %q as %q", text, clean)
	default:
		return true
	}
	return false
}

// networks parses addresses and networks.
func (p *parser) networks(node *yaml.Node) (networks []netip.Prefix) {
	for _, v := range p.values(node, "exempt") {
		network, err := netip.ParsePrefix(v.Value)
		if addr, failed := netip.ParseAddr(v.Value); failed == nil {
			network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		plain, _ := keys.Network(network)
		switch {
		case err == nil && plain != network:
			p.fault(v.Line, "exempt: write the IPv4 addresses of %q as an IPv4 network, such as 10.0.0.0/8", v.Value)
		case err != nil || strings.Contains(v.Value, "%"):
			p.fault(v.Line, "exempt: %q is neither an address nor a network such as 10.0.0.0/8", v.Value)
		case network != network.Masked():
			p.fault(v.Line, "exempt: write %s as %s", v.Value, network.Masked())
		default:
			networks = append(networks, network)
		}
	}
	return networks
}

// resolved returns the target of an alias, or the node itself if it is not an alias.
func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}
