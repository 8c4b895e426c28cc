# Needs Python 3.11 or later and make, nothing else: each target makes .venv where it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEMO := .demo
# Processes that run tests. The tests of a file stay in one of them (--dist loadfile): they share trained models.
WORKERS ?= 2

.PHONY: demo test test-page test-spark docs release mutants browser format clean

demo: .venv/demo-installed  ## get ICD-10-CM, train a model on it, judge it, tag a few phrases
	rm -rf $(DEMO)
	$(BIN)/zipfel demo $(DEMO)

test: .venv/test-installed  ## lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile

test-page: .venv/page-installed browser  ## the page that `zipfel serve` shows, in a real browser
	$(BIN)/pytest tests/page

test-spark: .venv/spark-installed  ## BatchTagger in Spark, which is large, and needs Java 17 or later
	@command -v java >/dev/null || { echo "make test-spark needs Java 17 or later: install a JRE (Debian: apt-get install default-jre-headless)" >&2; exit 1; }
	$(BIN)/pytest tests/spark

docs: .venv/docs-installed  ## the documentation, in site/; warnings are errors
	$(BIN)/python -m tools.site site

release: .venv/release-installed  ## wheel and sdist in dist/, checked in a clean environment; bill of materials, checksums
	$(BIN)/python -m tools.release dist

mutants: .venv/test-installed  ## do the tests notice wrong changes? MUTANTS='--model glas --count 100 --seed 0 --jobs 1'
	$(BIN)/python -m tests.mutants $(MUTANTS)

browser:
	@command -v chromium >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			|| { echo "make test-page needs chromium: install the package of that name (Debian: apt-get install chromium)" >&2; exit 1; }; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; }
	@chromium --version 2>/dev/null

format: .venv/test-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv $(DEMO) site

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "zipfel needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv

.venv/demo-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo]'
	touch $@

.venv/test-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[all,bench,dev,ray]'
	touch $@

.venv/page-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[serve,dev,page]'
	touch $@

.venv/spark-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[spark,dev]'
	touch $@

.venv/docs-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

.venv/release-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[release]'
	touch $@
