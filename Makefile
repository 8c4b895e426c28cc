# Needs Python 3.11 or later and make, nothing else: each target makes .venv where it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEMO := .demo

.PHONY: demo test format clean

demo: .venv/demo-installed  ## get ICD-10-CM, train a model on it, judge it, tag a few phrases
	rm -rf $(DEMO)
	$(BIN)/zipfel demo $(DEMO)

test: .venv/test-installed  ## lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

format: .venv/test-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv $(DEMO)

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "zipfel needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv

.venv/demo-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo]'
	touch $@

.venv/test-installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet -c constraints.txt -e '.[all,bench,dev]'
	touch $@
