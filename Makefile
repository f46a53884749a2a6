# Everything runs inside .venv, which the first target that needs it sets up by itself.
#   make demo    a store filled through the broker, damaged and saved, in front of your eyes
#   make demo-cluster  three nodes, of which the leader is killed: what was acknowledged is there
#   make test    every test but the slow ones
#   make test-fast  rules and formats without servers, Spark and terminals; for every save
#   make check   formatting, lint, types, layers
# Kernels and hot modules are compiled: with the C compiler that is there, or one that comes as a package (kernelbuild.py).

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
  $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
BIN := .venv/bin
INSTALLED := .venv/.installed
SERVERS := .servers/.fetched
CLIENTS := .clients/.fetched
PROTO := $(wildcard stantools/format/proto/*.proto)
# Two wait for servers while two compute (tests/conftest.py): four keep two processors busy.
NUMBER_OF_TEST_PROCESSES ?= 4
ARGS ?=
# Tests start Python a thousand times: what is compiled is kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup compiled check format test test-fast test-slow demo demo-cluster proto docs man screens recordings samples dist bench bench-offline bench-migration bench-pipeline bench-broker bench-cluster bench-browser clean

help:
	@sed -n 's/^#   make/make/p' Makefile
	@echo "also: setup, compiled, format, test-slow, proto, docs, man, screens, recordings, samples, dist, bench, bench-offline,"
	@echo "      bench-migration, bench-pipeline, bench-broker, bench-cluster, bench-browser, clean"

setup: $(INSTALLED)

# What an environment is made of.
PARTS := pyproject.toml setup.py kernelbuild.py constraints.txt \
  $(wildcard stantools/*/*.p[yx][xd] stantools/*/*/*.p[yx][xd] broker/*/*.p[yx][xd] broker/*/*/*.p[yx][xd])

$(INSTALLED): $(PARTS)
	@test -n "$(PYTHON)" || { echo "make: python3 is missing or older than 3.11; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version) (once: some minutes, 1.4 GB; again when pyproject.toml changes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
	  || { echo "make: python3 -m venv failed; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -c 'from stantools.format import kernels; print("stantools is ready")'
	@touch $@

# The hot modules, after a change of one of them: all are compiled again, in about a minute.
compiled: $(INSTALLED)
	@$(BIN)/python -c 'from stantools import compiled_modules; compiled_modules.check()' 2>/dev/null || { \
	  echo "compiling the broker's hot modules"; $(BIN)/python setup.py -q build_ext --inplace -j2 > build/compiled.log 2>&1 \
	  || { tail -20 build/compiled.log >&2; exit 1; }; }

# Servers of several versions to test against; those that cannot be had are skipped, visibly.
$(SERVERS): tests/servers.py | $(INSTALLED)
	@$(BIN)/python tests/servers.py
	@touch $@

# Client libraries of NATS Streaming and NATS, each in an environment of its own.
$(CLIENTS): tests/clients.py | $(INSTALLED)
	@$(BIN)/python tests/clients.py
	@mkdir -p $(@D) && touch $@

# What benchmarks use is to be there; they need no exact types.
LOOSE := --cache-dir=.mypy_cache/benchmarks --follow-imports=silent --no-warn-unused-ignores --no-warn-unreachable \
	$(addprefix --disable-error-code=,arg-type assignment func-returns-value index misc no-any-return)

check: $(INSTALLED)
	@$(BIN)/ruff format --check --quiet . || { echo "make: not formatted; run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary $(LOOSE) benchmarks
	@contracts=$$($(BIN)/lint-imports --no-logo) || { echo "$$contracts" >&2; exit 1; }
	@$(BIN)/python tests/budget.py
	@echo "check: format, lint, types, layers and budget are clean"

format: $(INSTALLED)
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

test: compiled $(SERVERS) $(CLIENTS)
	@$(BIN)/python -m pytest -q -n $(NUMBER_OF_TEST_PROCESSES) --dist loadgroup -m "not slow" $(ARGS)

FAST := tests/format tests/store tests/property tests/nats tests/broker/streaming tests/broker/publishes \
  tests/migration/plan tests/streamfiles

COMPILED_FAST := tests/nats tests/broker/streaming tests/broker/publishes

# The sources, then the objects of those that are compiled.
test-fast: compiled
	@STANTOOLS_INTERPRETED=1 $(BIN)/python -m pytest -q -n 2 -m "not (slow or server or spark or tui or interop)" $(FAST) $(ARGS)
	@$(BIN)/python -m pytest -q -n 2 -m "not (slow or server or spark or tui or interop)" $(COMPILED_FAST) $(ARGS)

# Some measure memory or time: no more at once than they were tried with.
test-slow: NUMBER_OF_TEST_PROCESSES = 3
test-slow: compiled $(SERVERS) $(CLIENTS)
	@$(BIN)/python -m pytest -q -n $(NUMBER_OF_TEST_PROCESSES) --dist loadgroup -m slow $(ARGS)

# The demonstrations need less than tests do: where .venv is missing, it gets only that, and `make setup` adds the rest.
# The broker's modules run as sources: to compile them takes longer than the demonstration.
DEMO := .venv/.demo
$(DEMO): $(PARTS)
	@test -n "$(PYTHON)" || { echo "make: python3 is missing or older than 3.11; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@if test -e $(INSTALLED); then $(MAKE) --no-print-directory setup; else \
	  echo "setting up .venv for the demonstration (once: one to two minutes, 200 MB)"; \
	  { test -x $(BIN)/python || $(PYTHON) -m venv .venv; } \
	  && STANTOOLS_INTERPRETED=1 $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check \
	    -c constraints.txt -e '.[jetstream]'; fi
	@touch $@

demo: $(DEMO)
	@$(BIN)/stantools demo --out demo-out

demo-cluster: $(DEMO)
	@$(BIN)/stantools demo --cluster --out demo-cluster-out

proto: $(INSTALLED)
	@$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. $(PROTO)
	@echo "wrote _pb2.py and _pb2.pyi of $(PROTO)"

# The generated pages, the output that pages show, and the site of all pages in build/site.
docs: $(INSTALLED)
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/tour.py
	@$(BIN)/python docs/site.py

# Pages for man(1), which wheels of `make dist` carry.
man: $(INSTALLED)
	@$(BIN)/python docs/manpages.py build/man

# Pictures of the browser for the README and the guide.
screens: $(INSTALLED)
	@$(BIN)/python docs/screens.py $(ARGS)

# Animations of commands in a terminal, and of the browser.
recordings: $(INSTALLED)
	@$(BIN)/python docs/recordings.py $(ARGS)

samples: $(INSTALLED)
	@$(BIN)/python samples/make_samples.py

# A source archive, a wheel for this Python, and the bill of materials of both, in dist/.
dist: $(INSTALLED) man
	@rm -rf dist
	@mkdir dist && $(BIN)/python -m build --outdir dist > dist/build.log 2>&1 || { tail -20 dist/build.log >&2; exit 1; }
	@$(BIN)/python docs/sbom.py dist

bench: bench-offline bench-migration bench-pipeline bench-broker bench-cluster bench-browser

bench-offline: $(INSTALLED)
	@$(BIN)/python benchmarks/offline.py $(ARGS)

bench-migration: $(INSTALLED) $(SERVERS)
	@$(BIN)/python benchmarks/migration.py $(ARGS)

bench-pipeline: $(INSTALLED)
	@$(BIN)/python benchmarks/pipeline.py $(ARGS)

bench-broker: compiled $(SERVERS)
	@$(BIN)/python benchmarks/brokerspeed.py $(ARGS)

bench-cluster: compiled
	@$(BIN)/python benchmarks/cluster.py $(ARGS)

bench-browser: $(INSTALLED)
	@$(BIN)/python benchmarks/browser.py $(ARGS)

clean:
	@rm -rf .venv .servers .clients .golden build dist *.egg-info demo-out demo-cluster-out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find stantools broker -name "*.c" -delete -o -name "*.so" -delete -o -name "compiled.*.txt" -delete
	@find stantools broker tui tests samples docs benchmarks -name __pycache__ -prune -exec rm -rf {} +
