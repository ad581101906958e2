# Two commands: `make train` and `make test`. ARGS="..." adds overrides or pytest options.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt


.PHONY: train test lint clean

train: $(VENV)/.train
	$(BIN)/python train.py $(ARGS)

test: $(VENV)/.test-$(EXTRAS)
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy train.py configs data parallelism model training sweeps hydra_plugins

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("FoldText needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.test-$(EXTRAS): $(VENV)/.train
	$(PIP) -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.lint: $(VENV)/.train
	$(PIP) -e '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
