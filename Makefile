# Every target makes what it needs: a virtual environment under .venvs/, made again when pyproject.toml changes.
#
#   make demo    the first example on real photos; writes demo-output/contact-sheet.png
#   make test    the tests, some minutes (plain `pytest` runs them one by one)
#   make lint    ruff, and mypy in strict mode
#   make bench   the benchmarks against other loaders (most of an hour), into docs/benchmark.md
#   make bench-ops   each op alone against other libraries (under an hour), into docs/benchmark.md
#   make bench-io    bytes: object stores and web servers against other clients (some minutes; needs nginx), into docs/benchmark.md
#   make bench-formats   file formats against their libraries (some minutes), into docs/benchmark.md
#   make bench-query    lazy queries against other engines (some minutes), into docs/benchmark.md
#   make bench-runtime   resuming, shuffling and what counters cost (some minutes), into docs/benchmark.md
#   make fuzz    every parser under mutated files, a minute each
#   make stubs   the generated files: *.pyi, docs/ops.md
#
# Needs Python 3.11 or newer; PYTHON=/path/to/python picks another than the first one found.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --no-input

.PHONY: help demo test lint bench bench-ops bench-io bench-formats bench-query bench-runtime fuzz stubs clean
help:
	@sed -n '3,14s/^#  //p' Makefile

demo: .venvs/demo/ready
	.venvs/demo/bin/python -m dataio demo

# First the tests that others would disturb, one by one, then all others in two processes; both run, whatever fails.
# Bytecode of the tests, with asserts as pytest rewrites them, is kept: half of the time to collect them.
test: export PYTHONDONTWRITEBYTECODE =
test: .venvs/dev/ready .venvs/azurite/ready .venvs/sail/ready .venvs/spark/ready
	@status=0; \
	.venvs/dev/bin/python -m pytest -m alone $$(grep -rlw mark.alone --include='test_*.py' tests) || status=$$?; \
	.venvs/dev/bin/python -m pytest -m "not alone" -n 2 --dist worksteal || status=$$?; \
	exit $$status

lint: .venvs/dev/ready
	.venvs/dev/bin/ruff check .
	.venvs/dev/bin/python scripts/check_tree.py
	cd build/check && ../../.venvs/dev/bin/mypy --config-file ../../pyproject.toml --cache-dir ../mypy

bench: .venvs/bench/ready
	.venvs/bench/bin/python bench/loader.py

bench-ops: .venvs/bench/ready
	.venvs/bench/bin/python bench/ops.py

bench-io: .venvs/dev/ready
	.venvs/dev/bin/python bench/io.py

bench-formats: .venvs/bench/ready
	.venvs/bench/bin/python bench/formats.py

bench-query: .venvs/bench/ready
	.venvs/bench/bin/python bench/query.py

bench-runtime: .venvs/bench/ready
	.venvs/bench/bin/python bench/runtime.py

fuzz: .venvs/dev/ready
	.venvs/dev/bin/python scripts/fuzz.py

stubs: .venvs/dev/ready
	.venvs/dev/bin/python scripts/make_stubs.py
	.venvs/dev/bin/python scripts/make_ops_table.py

# The server of the tests of az://, which are skipped without it (on CI they fail).
.venvs/azurite/ready:
	@mkdir -p .venvs/azurite
	@npm install --silent --no-audit --no-fund --prefix .venvs/azurite azurite@3.35.0 && touch $@ \
		|| echo "Azurite was not installed (is npm?): tests of az:// are skipped" >&2

# .venvs/NAME/ready: the environment of the optional dependencies NAME.
.venvs/%/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: set PYTHON=" >&2; exit 1; }
	@echo "making .venvs/$* (a few minutes the first time)"
	@test -x .venvs/$*/bin/python || $(PYTHON) -m venv .venvs/$*
	@.venvs/$*/bin/python -m pip install $(PIP_FLAGS) -e '.[$*]'
	@touch $@

clean:
	rm -rf .venvs build demo-output
