# make test is for each change: it installs what it needs, and tests all packages on the embedded
# server, on redis-server and next to Redisson. make check is the part of it that needs no server,
# with the linters. make proof is the rest: it runs before a release, and in CI. scripts/check has
# the steps, and scripts/deps installs the tools.

# go build cannot stamp the version of a checkout that belongs to another user, as in CI. Without
# the paths of the checkout, another clone need not compile again what has not changed.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false -trimpath)

.NOTPARALLEL:
.PHONY: help check test proof unit servers lint release-check outdated tidy matrix matrix-all testdata demo demo-java bench bench-update soak views mutants vuln deps clean

# What to run before each commit: lint, and the tests that need no server.
check:
	scripts/deps cc luacheck
	BUDGET=90 scripts/check lint quick

# What a change needs, in 5 minutes on two cores; 10 the first time.
test:
	scripts/deps redis cc java maven
	BUDGET=300 scripts/check test

# Lint, each module by itself, the modules as users get them, and all tests: every release of
# Redisson that changed something, other servers, faults, long searches. In 20 minutes, 30 the first
# time.
proof: deps
	scripts/check lint modules release tests

help:
	@awk '/^#/ { text = text "\n    " substr($$0, 3); next } /^[a-z-]+:/ { sub(/:.*/, ""); print $$0 text } { text = "" }' Makefile

# All tests of make proof except those next to Redisson: no Java needed.
unit:
	scripts/deps redis redis6 redis8 valkey8 valkey9 envoy cc
	scripts/check unit

# All tests on Redis 8.2, Valkey 8.1 and 9.1, of which make proof runs a part: three quarters of an
# hour.
servers: deps
	scripts/check servers

lint:
	scripts/deps luacheck
	scripts/check lint

# Tests all modules at the next version as users get them: see docs/releasing.md.
release-check:
	scripts/check release

# Prints the dependencies of each module, direct or of golang.org/x, and the tools, that are behind
# their newest release; fails if one can be updated. It needs the module proxy, so it is not part of
# proof: see docs/releasing.md.
outdated:
	scripts/check outdated

# go mod tidy for all modules, which require each other at a version that is not published yet.
tidy:
	scripts/check tidy

# Tests this library next to each Redisson version, and prints the table of compatibility.
matrix: deps
	scripts/check matrix

# The same with every release; writes the table into compat/numbers.md. Takes ten minutes, longer
# with the downloads.
matrix-all: deps
	RUN="-all -update -timeout 2h" scripts/check matrix

# Regenerates testdata/: the states, from the real jars.
testdata: deps
	scripts/check states

# Shows workers and pollers on one limit, live.
demo:
	go run -v ./cmd/rrl/demo

# Shows Go and Java (Redisson) on one limit, live.
demo-java:
	scripts/deps redis java maven
	go run -v ./cmd/rrl/demo --java

# Compares this library with its peers on its own Redis: a quarter of an hour. RUN=-quick takes a
# minute and a half.
bench: deps
	scripts/check bench

# The same; also writes the chart and the tables into README.md and bench/README.md.
bench-update: deps
	RUN=-update scripts/check bench

# Runs Go and Java clients on a Redis with one fault after the other: ten minutes. RUN='-minutes 2'
# takes two.
soak: deps
	scripts/check soak

# Runs the tests on mutants of the scripts and of the core; at least one test must fail for each:
# half an hour. RUN='-run dispatch' selects some of them; CHANGED=1 those in files that changed
# since the last release, CHANGED=HEAD~3 since that revision: minutes. RUN=-update keeps which test
# killed each, so that it runs first.
mutants: deps
	CHANGED='$(CHANGED)' scripts/check mutants

# Tests the web page and the terminal view of rrl in a browser and a terminal. RUN=-update writes
# pictures to docs/.
views:
	scripts/deps redis chromium tmux
	scripts/check views

# Looks for known vulnerabilities in the dependencies of each module. It needs vuln.go.dev, so it is
# not part of proof.
vuln:
	scripts/check vuln

# Installs missing tools that the tests need.
deps:
	scripts/deps

clean:
	go clean -testcache
	rm -rf bin compat/java/target compat/guava/java/target compat/springgateway/target examples/java/target
	find . -name '*.test' -type f -delete
