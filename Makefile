# `make run` shows tributary at work, `make test` runs everything that CI runs. Both install what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
export PATH := $(HOME)/.cargo/bin:$(PATH)

BINARY := target/release/tributary

.PHONY: run build test fuzz perf soak-crash faults clean help

run: build ## build, start conf/quickstart.conf, show what arrives
	@printf '\n  tributary will listen on 127.0.0.1:24224 and print each event as a line of JSON. Ctrl-C ends it.\n'
	@printf '  To see an event of your own, type in another terminal, in this folder:\n\n'
	@printf "    echo '{\"message\":\"hello\"}' | ./$(BINARY) cat my.tag\n\n"
	@mkdir -p .cache/quickstart
	@exec ./$(BINARY) -c conf/quickstart.conf --suppress-config-dump

build: ## install compilers where there are none, build the release binary
	@scripts/install.sh build
	cargo build --locked --release

test: ## everything: format, lints, unit, integration, clients, faults, fuzz
	@scripts/test.sh

fuzz: ## each fuzz target for FUZZ_SECONDS (default ten minutes)
	@scripts/install.sh fuzz
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),600)

perf: ## CPU, throughput and memory of the cases in docs/PERFORMANCE.md (PERF_CASES, PERF_EVENTS, PERF_RUNS)
	@scripts/install.sh build
	cargo bench --locked --bench cases

faults: build ## lost upstreams and kill -9, with what happened when
	@scripts/install.sh lab
	TRIBUTARY_BIN="$(CURDIR)/$(BINARY)" \
	cargo test --locked --test integration -- --test-threads=1 --nocapture lab:: crash::

soak-crash: build ## 5 M events, both forwarders killed in turn, judged by the oracle (docs/RELIABILITY.md)
	TRIBUTARY_BIN="$(CURDIR)/$(BINARY)" CRASH_EVENTS=5000000 CRASH_VICTIMS=both CRASH_KILLS=6 \
	cargo test --locked --test integration crash::kill_first -- --nocapture

clean: ## what was built and installed here
	rm -rf target fuzz/target .cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile
