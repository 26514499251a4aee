# `make` alone lists the targets. Everything that is missing is installed by the targets that need it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

CARGO ?= cargo
VENV := $(CURDIR)/target/venv
VENV_OLD := $(CURDIR)/target/venv-old
export VLLM_WORK ?= $(CURDIR)/target/vllm

# Where the JavaScript side finds Baton and the mock engines.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

# The Rust tests that run official clients start these interpreters.
export BATON_TEST_PYTHON := $(VENV)/bin/python
export BATON_TEST_PYTHON_OLD := $(VENV_OLD)/bin/python

.PHONY: help demo demo-web test test-js test-vllm run check fmt clippy tidy bench setup tools clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

demo: tools ## Kill an engine in the middle of an answer and watch the answer go on.
	$(CARGO) build --locked --release --bins --example demo
	target/release/examples/demo

demo-web: tools ## The same in the browser: drop the network, reload the page, kill the engine (docs/CLIENTS.md).
	@scripts/setup.sh npm
	cd clients/js && npm ci
	$(CARGO) build --locked --release --bins
	BATON_BIN="$(TARGET)/release" node examples/chat/demo.mjs

# Those of clients/js come first: Rust's are more, and their summary is the last line.
test: setup test-js ## All tests: units, properties, sockets, documentation, official clients, a browser.
	$(CARGO) test --locked --doc
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  echo "$(CARGO) nextest run"; $(CARGO) nextest run --locked; \
	else \
	  echo "$(CARGO) test (cargo-nextest would run the tests in parallel)"; \
	  $(CARGO) test --locked --lib --bins --tests --examples; \
	fi

test-js: tools ## Tests of clients/js: alone, with Baton and mock engines, official clients and Chromium.
	@scripts/setup.sh node
	cd clients/js && npm ci && npm run check
	$(CARGO) build --locked --bins
	cd clients/js && BATON_BIN="$(TARGET)/debug" npm test
	cd clients/js && BATON_BIN="$(TARGET)/debug" npm run test:browser

# One after the other: the servers take a core and 5 GB each.
test-vllm: setup ## Tests with a real vLLM on the CPU, which is set up first (8 GB in target/vllm, or VLLM_WORK; an hour).
	scripts/vllm/setup.sh
	$(CARGO) test --locked --test vllm -- --ignored --nocapture --test-threads=1

run: tools ## Run Baton with conf/baton.yaml.
	$(CARGO) run --locked --release -- run -c conf/baton.yaml

# Tidy is one of the tests.
check: fmt clippy test ## What CI runs: formatting, lints with warnings denied, tidy, all tests.

fmt: tools ## Is everything formatted?
	$(CARGO) fmt --check

clippy: tools ## Lints, warnings denied.
	$(CARGO) clippy --locked --all-targets -- -D warnings

tidy: tools ## Only the rules of the house: layers, limits, names (tests/tidy.rs).
	$(CARGO) test --locked --test tidy

bench: tools ## Benchmarks; each asserts its result before it is timed.
	$(CARGO) bench --locked

setup: tools $(VENV)/ready $(VENV_OLD)/ready ## Install what is missing: compilers, and the Python clients for the tests.

tools:
	@scripts/setup.sh

$(VENV)/ready: tests/python/requirements.txt
$(VENV_OLD)/ready: tests/python/requirements-old.txt
$(VENV)/ready $(VENV_OLD)/ready:
	@scripts/setup.sh python
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean: ## Remove everything that was built.
	rm -rf target
