# make up      install what is missing, start three nodes on this machine, ask them something
# make test    install what is missing, run every test that this machine can run
#
# Both may be stopped at any time and typed again: what is done is kept.
# Options: PYTHON=/path/to/python3.11   VENV=.venv   MODELS=~/.local/share/sparkctl/models   NODES=3
#          TESTS="tests/launcher -m 'not sglang'"    SYSTEM_PACKAGES=mine (install none)

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.PHONY: help up down install test check format clean model system-up system-test

VENV := .venv
MODELS := $(HOME)/.local/share/sparkctl/models
NODES := 3
TESTS := tests
ENGINE := engines/cpu-0.5.23
BIN := $(VENV)/bin
CODE := launcher engram sgl_ext tests benchmarks scripts setup.py
SHELL_SCRIPTS = .ci/run $(shell find scripts launcher benchmarks tests -name '*.sh')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

up: install
	@scripts/up.sh $(BIN)/sparkctl $(NODES)

down:
	$(BIN)/sparkctl down

install: $(VENV)/.installed model

# ---- system packages: nothing to do costs a few milliseconds, so these need no stamp -------------------
system-up system-test: system-%:
	@[ "$(SYSTEM_PACKAGES)" = mine ] || PYTHON="$(PYTHON)" scripts/system_packages.sh $*

# ---- .venv: a stamp is written only after its step is complete -----------------------------------------
$(VENV)/.python: | system-up
	@echo "== $(VENV)"
	@python=$$(PYTHON="$(PYTHON)" scripts/find_python.sh) && "$$python" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.engine: $(ENGINE).txt $(ENGINE)-no-deps.txt $(VENV)/.python
	@$(BIN)/python scripts/say_torch_build.py $(ENGINE).txt
	@echo "== engine: SGLang on CPU and what it imports"
	$(BIN)/pip install --prefer-binary -r $(ENGINE).txt
	$(BIN)/pip install --no-deps -r $(ENGINE)-no-deps.txt
	@touch $@

# Editable: after this, only its requirements and the C++ core need another installation.
$(VENV)/.installed: pyproject.toml setup.py $(wildcard engram/core/*) $(VENV)/.engine | system-up
	@echo "== sparkctl"
	$(BIN)/pip install -c $(ENGINE).txt -e '.[node]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.installed | system-test
	@echo "== test tools"
	@$(BIN)/python scripts/test_requirements.py >$(VENV)/test-requirements.txt
	$(BIN)/pip install -c $(ENGINE).txt -r $(VENV)/test-requirements.txt
	@touch $@

model: $(VENV)/.installed
	@$(BIN)/sparkctl tiny-model v41 $(MODELS)/tiny-v41

# ---- tests and checks ------------------------------------------------------------------------------------
test: install $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations=25 $(TESTS)

check: install $(VENV)/.test
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy launcher engram sgl_ext
	shellcheck $(SHELL_SCRIPTS)
	$(BIN)/python -m pytest -q -m 'not sglang and not netns and not slow' $(TESTS)

format: $(VENV)/.test
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf $(VENV) build dist *.egg-info engram/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
