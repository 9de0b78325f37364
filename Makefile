# make test runs all there is: it installs what is missing, checks the code, and tests each module on the
# embedded server, on a real redis-server and next to real Redisson. The steps are in scripts/check, what
# they need in scripts/deps.

# Stamping commands with the version of the checkout fails where it belongs to another user, as in CI.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

.NOTPARALLEL:
.PHONY: help test unit lint release-check tidy matrix matrix-all testdata demo bench bench-update soak views mutants vuln deps clean

# Everything. The other targets are parts of it, or tools.
test: deps
	scripts/check lint release unit compat

help:
	@awk '/^#/ { text = text "\n    " substr($$0, 3); next } /^[a-z-]+:/ { sub(/:.*/, ""); print $$0 text } { text = "" }' Makefile

# All but Redisson: no Java needed.
unit:
	scripts/deps redis redis6 cc
	scripts/check unit

lint:
	scripts/check lint

# All modules as users get them at the next version, which docs/releasing.md tells more of.
release-check:
	scripts/check release

# go mod tidy for all modules, which need each other at a version that is not published yet.
tidy:
	scripts/check tidy

# Each Redisson version against this library, with the table of what works.
matrix: deps
	scripts/check matrix

# The same with every release, and writes the table into COMPATIBILITY.md: ten minutes, more with the downloads.
matrix-all: deps
	RUN="-all -update -timeout 2h" scripts/check matrix

# Writes testdata/ anew, from the real jars.
testdata: deps
	scripts/check states

# Workers and pollers on one limit, live.
demo:
	go run ./cmd/rrl demo

# This library beside its peers, on a Redis of its own: a quarter of an hour. RUN=-quick takes a minute.
bench: deps
	scripts/check bench

# The same, and writes tables and chart into the README.
bench-update: deps
	RUN=-update scripts/check bench

# Go and Java clients while one fault after the other strikes their Redis: ten minutes. RUN='-minutes 2' takes two.
soak: deps
	scripts/check soak

# Breaks the scripts and the core in small ways, one at a time, and shows that the tests notice each: half an hour.
# RUN='-run waiter.go' takes some.
mutants: deps
	scripts/check mutants

# The web page and the terminal view of rrl in a browser and a terminal. RUN=-update keeps pictures in docs/.
views:
	scripts/deps redis chromium tmux
	scripts/check views

# Known vulnerabilities of what is used, in each module. It asks vuln.go.dev, so it is no part of the tests.
vuln:
	scripts/check vuln

# Installs what the tests need and this machine lacks.
deps:
	scripts/deps

clean:
	go clean -testcache
	rm -rf bin compat/java/target compat/guava/java/target
	find . -name '*.test' -type f -delete
