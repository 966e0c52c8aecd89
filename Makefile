# Each target makes what it needs in .venv first; that takes a moment when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMOKE := tests/storage/contract tests/engine/smtp/test_wire.py tests/engine/smtp/host/test_host.py tests/api/http
SMOKE_TOOLS := hypothesis pytest pytest-trio pytest-xdist
STORE_SUITES := tests/peers/postgres/test_contract.py
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
HELM := helm.sh/helm/v3/cmd/helm@v3.22.0 github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
CRDS := github.com/prometheus-operator/prometheus-operator@v0.80.1
OASDIFF := github.com/oasdiff/oasdiff@v1.37.0
MINUTES ?= 20
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Further interpreters that this machine has, of those we support.
OTHERS := $(foreach version,3.12 3.13 3.14,$(firstword $(shell \
	for each in python$(version) $$HOME/.pyenv/versions/$(version).*/bin/python$(version); do \
		$$each -c 'import sys; print(sys.executable)' 2>/dev/null; done)))

# An environment may forbid Python to keep what it compiled; then every start would compile
# all of this anew, for 0.2 s.
unexport PYTHONDONTWRITEBYTECODE

# The documentation as it is served.
RENDERED := api/pages/rendered/contents.json

.PHONY: setup docs tools demo serve test test-others smoke smoke-others wheel-test container first-use peers campaign clients browser shots check actionlint compatible described helm bench lists format dist sbom map man lock clean

# Installs what running needs, renders the documentation, and compiles our modules.
setup: $(STAMP) $(RENDERED)
	@$(BIN)/python -m compileall -q engine storage api bench

# Renders the pages of docs/, if one has changed.
docs: $(STAMP) $(RENDERED)

$(RENDERED): $(wildcard docs/*.md) $(addprefix api/pages/,rendering.py markdown.py examples.py page.py) | $(STAMP)
	@$(BIN)/python -m mailprobe.api.pages.rendering

# Adds the tools of development and what `make bench` draws with.
tools: setup $(TOOLS)

$(STAMP): requirements-mcp.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mailprobe needs Python 3.11 or newer; name one with: make PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements-mcp.lock
	$(INSTALL) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS): requirements-dev.lock $(STAMP)
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@git config core.hooksPath .githooks 2>/dev/null || true  # no checkout of git's: nothing to check
	@touch $@

demo: setup
	@$(BIN)/mailprobe demo

serve: setup
	@$(BIN)/mailprobe serve

# Tests wait for other processes and for real clocks, so two cores have room for four workers.
test: tools
	MAILPROBE_TEST_SEEDS=$(SEEDS) $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

# The same suite on every other supported interpreter that is here, each in its own .venv-*.
test-others: each := test

# What depends on the interpreter most, on each of them: storage's contract, SMTP and HTTP.
# Packaging runs on all of them in wheel-test. Of the tools only what runs these is installed there.
smoke-others: each := smoke

test-others smoke-others:
	@for python in $(OTHERS); do \
		venv=.venv-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$(MAKE) --no-print-directory $(each) PYTHON=$$python VENV=$$venv || exit 1; \
	done

smoke: setup
	$(INSTALL) --require-hashes --constraint requirements-dev.lock $(SMOKE_TOOLS)
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal $(SMOKE)

# Builds the wheel and runs it in fresh environments of every supported interpreter that is here,
# outside of this checkout. It needs the wheels of requirements.lock, from wherever pip finds them.
wheel-test: tools
	OTHERS="$(OTHERS)" $(BIN)/python -m pytest tests/packaging

# The tests against real programs, then storage's and the service's own on PostgreSQL, which keep both cores
# busy by themselves. Installs Debian's packages, so it takes root: see dev/peers.md.
peers:
	@tests/peers/able
	@$(MAKE) --no-print-directory tools
	@tests/peers/install
	$(BIN)/python -m pytest --numprocesses 3 --no-loadscope-reorder --ignore $(STORE_SUITES) tests/peers
	$(BIN)/python -m pytest $(STORE_SUITES)

# Faults under load, from a seed, until the minutes are over: dev/campaign.md. Takes root, and libfaketime of Debian.
campaign:
	@tests/campaign/able
	@$(MAKE) --no-print-directory tools
	@tests/campaign/install
	$(BIN)/python -m tests.campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# The image, built and run by podman, which is installed if there is none: that takes root. Where its
# base image cannot be had, a stand-in is made of a Python of this machine.
container:
	@tests/container/able
	@$(MAKE) --no-print-directory tools
	@tests/container/install
	OTHERS="$(OTHERS)" $(BIN)/python -m pytest tests/container

# A newcomer's first ten minutes: the README's first two commands and the library from the wheel on a clean
# Debian. That takes root, and packages from wherever pip finds them.
first-use:
	@tests/first_use/able
	@$(MAKE) --no-print-directory tools
	@tests/first_use/install
	$(BIN)/python -m pytest tests/first_use

# Clients generated from the API's description use a running service: in Python and TypeScript, and by
# openapi-generator in Python, Go, Java and PHP, where their programs are.
clients: tools
	@tests/clients/able
	@tests/clients/install
	npm ci --silent --no-fund --no-audit --prefix tests/clients
	$(BIN)/python -m pytest -rs tests/clients

# The dashboard in Debian's Chromium, which is installed if there is none: that takes root.
browser:
	@tests/browser/able
	@$(MAKE) --no-print-directory tools
	@tests/browser/install
	$(BIN)/python -m pytest --numprocesses 2 tests/browser

# Makes the README's pictures anew.
shots: tools
	$(BIN)/python -m tests.browser.shots

bench: tools
	@$(BIN)/mailprobe bench

# Makes the lists of engine/data anew from their upstreams: docs/lists.md.
lists: tools
	$(BIN)/python -m dev.lists build $(ARGS)

check: tools actionlint compatible
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

# Reads the workflows as GitHub does. It is a Go program, built once where Go and its modules are.
actionlint: tools
	@if [ -x $(BIN)/actionlint ] || GOBIN=$(abspath $(BIN)) go install $(ACTIONLINT) 2>/dev/null; then \
		echo $(BIN)/actionlint && $(BIN)/actionlint; \
	else \
		echo "make check: left out actionlint, which needs Go and its module $(ACTIONLINT)"; \
	fi

# Finds what in the API's description would break a client of the last release: a Go program, as above.
# What is meant to break one goes into dev/openapi-breaks.txt, as oasdiff words it, with the changelog's line.
compatible: tools
	@if [ -x $(BIN)/oasdiff ] || GOBIN=$(abspath $(BIN)) go install $(OASDIFF) 2>/dev/null; then \
		echo $(BIN)/oasdiff breaking && \
		$(BIN)/python -m tests.api.rest.described > $(VENV)/openapi.json && \
		$(BIN)/oasdiff breaking --fail-on WARN --format singleline --err-ignore dev/openapi-breaks.txt \
			--warn-ignore dev/openapi-breaks.txt dev/openapi.json $(VENV)/openapi.json; \
	else \
		echo "make check: left out oasdiff, which needs Go and its module $(OASDIFF)"; \
	fi

# Keeps the description of the version that is about to be released, and its script of forms.
described: tools
	$(BIN)/python -m tests.api.rest.described > dev/openapi.json
	cp api/forms/form.js api/forms/kept/$$($(BIN)/python -c 'from mailprobe.api.forms import script; print(script.script_name(script.script_text()))')

# The chart of Kubernetes, by helm lint and kubeconform: Go programs. The schemas are of a package for pip, and
# of the Prometheus operator's module. Not optimized, the programs are compiled in two thirds of the time.
helm: tools
	@tests/helm/able
	@for each in $(HELM); do GOBIN=$(abspath $(BIN)) go install -gcflags='all=-N -l' $$each || exit 1; done
	@mkdir -p build/helm
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest build/helm \
		-r tests/helm/schemas.lock
	CRDS="$$(go mod download -json $(CRDS) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" $(BIN)/python -m pytest tests/helm

format: tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What a release publishes: the source distribution, the wheel made of it, and the list of all that
# an installation holds (SBOM, CycloneDX). The commit in them is git's.
dist: tools
	rm -rf build dist
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist dist/*.tar.gz
	@$(MAKE) --no-print-directory sbom

sbom: tools
	$(PYTHON) -m venv --clear build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index dist/*.whl
	build/installed/bin/python -m pip uninstall --quiet --yes setuptools pip
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file dist/mailprobe.cdx.json build/installed/bin/python

# Prints every module with the first sentence of its docstring, and figures of the code's shape; those of two
# requests after `make tools`.
map: setup
	@$(BIN)/python tests/architecture_map.py
	@test ! -e $(TOOLS) || $(BIN)/python -m tests.api.rest.request_ways

# Rewrites the manual page from the commands.
man: setup
	@$(BIN)/python -m mailprobe.api.cli.shell.manual > dev/mailprobe.1

# Writes the locks anew from pyproject.toml (needs uv). A package has the same version in all.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
lock:
	$(LOCK) --extra build --output-file requirements.lock pyproject.toml
	$(LOCK) --extra build --extra mcp --constraint requirements.lock --output-file requirements-mcp.lock pyproject.toml
	$(LOCK) --all-extras --constraint requirements-mcp.lock --output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv .venv-* .peers .first-use build dist *.egg-info
