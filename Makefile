# make test runs all there is: it installs what is missing, checks the code, and tests each module on the
# embedded server, on a real redis-server and next to real Redisson. The steps are in scripts/check, what
# they need in scripts/deps.

# Stamping commands with the version of the checkout fails where it belongs to another user, as in CI.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

.NOTPARALLEL:
.PHONY: help test unit lint matrix matrix-all testdata demo bench bench-update deps clean

# Everything. The other targets are parts of it, or tools.
test: deps
	scripts/check lint unit compat

help:
	@awk '/^#/ { text = text "\n    " substr($$0, 3); next } /^[a-z-]+:/ { sub(/:.*/, ""); print $$0 text } { text = "" }' Makefile

# All but Redisson: no Java needed.
unit:
	scripts/deps redis redis6 cc
	scripts/check unit

lint:
	scripts/check lint

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

# Installs what the tests need and this machine lacks.
deps:
	scripts/deps

clean:
	go clean -testcache
	rm -rf bin compat/java/target compat/guava/java/target
	find . -name '*.test' -type f -delete
