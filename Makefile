# Needs Python 3.11 or later and make, nothing else: each target makes .venv where it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEMO := .demo

.PHONY: demo test format clean

demo: .venv/demo-installed  ## get ICD-10-CM, look at it, tag by label text, and judge the tags
	rm -rf $(DEMO) && mkdir $(DEMO)
	$(BIN)/zipfel data get icd10cm $(DEMO)/icd10cm
	$(BIN)/zipfel data info $(DEMO)/icd10cm
	$(BIN)/python examples/label_text_cosine.py $(DEMO)/icd10cm $(DEMO)/cosine.npz
	$(BIN)/zipfel evaluate $(DEMO)/icd10cm --predictions $(DEMO)/cosine.npz

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
