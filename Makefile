# Each target makes what it needs in .venv first; that takes a moment when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Further interpreters that this machine has, of those we support.
OTHERS := $(foreach version,3.12 3.13 3.14,$(firstword $(shell \
	for each in python$(version) $$HOME/.pyenv/versions/$(version).*/bin/python$(version); do \
		$$each -c 'import sys; print(sys.executable)' 2>/dev/null; done)))

# An environment may forbid Python to keep what it compiled; then every start would compile
# all of this anew, for 0.2 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo serve test test-others peers check bench format lock clean

# Compiled here too, for whoever starts it from such an environment.
setup: $(STAMP)
	@$(BIN)/python -m compileall -q engine storage api bench

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mailprobe needs Python 3.11 or newer; name one with: make PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: setup
	@$(BIN)/mailprobe demo

serve: setup
	@$(BIN)/mailprobe serve

# Tests wait for other processes and for real clocks, so two cores have room for three workers:
# they kept the cores 77 % busy.
test: setup
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The same suite on every other supported interpreter that is here, each in its own .venv-*.
test-others:
	@for each in $(OTHERS); do \
		venv=.venv-$$($$each -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$(MAKE) --no-print-directory test PYTHON=$$each VENV=$$venv || exit 1; \
	done

# The tests against real programs. Installs Debian's packages, so it takes root: see docs/peers.md.
peers:
	@tests/peers/able
	@$(MAKE) --no-print-directory setup
	@tests/peers/install
	$(BIN)/python -m pytest tests/peers

bench: setup
	@$(BIN)/mailprobe bench

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Writes requirements.lock anew from pyproject.toml (needs uv).
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --no-header --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .venv-* .peers build dist *.egg-info
