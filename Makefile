# Every way to run, check and test the project. `make help` lists them.
# A bare clone needs nothing first: the virtual environment, the container engine and the image
# are made when a target needs them, and are not made twice.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := .cache/bin
PACKAGES := workroom orchestrator container_runtime reviewer egress_proxy
TYPED := $(PACKAGES) $(patsubst %/,%,$(sort $(dir $(wildcard $(addsuffix /*.py,tests benchmarks examples)))))
GRPCURL := github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3

# Compiled modules are kept here whatever the shell says: each service starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for processes more than they compute: two at a time, those of a file in their order.
SPREAD := --numprocesses=2 --dist=loadfile

# Another interpreter: `make PYTHON=/path/of/python3.12 …`
PYTHON ?= python3
INTERPRETERS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format protos bench fuzz setup grpcurl postgres clean clean-all

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: setup ## show the whole thing on a small task; needs no model and no key
	$(BIN)/python examples/demo.py

test: setup ## all tests but the slow ones
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

test-all: setup grpcurl postgres ## all tests
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(BIN)/python -m pytest $(SPREAD)

check: $(INSTALLED) ## format, lint, types and contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(TYPED)
	$(BIN)/buf lint protos
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null) || tag=; \
	if [ -n "$$tag" ]; then \
	  echo "$(BIN)/buf breaking protos (against $$tag)"; \
	  $(BIN)/buf breaking protos --against ".git#tag=$$tag,subdir=protos"; \
	fi

format: $(INSTALLED) ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(INSTALLED) ## generate the stubs in workroom/*/v1 from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos \
	  --python_out=. --mypy_out=. --grpc_python_out=. --mypy_grpc_out=. \
	  $$(find protos -name '*.proto' | sort)

bench: setup ## measure, and compare with what others do; writes benchmarks/out/latest.json
	$(BIN)/python -m benchmarks

# Seconds for each parser.
FUZZ_SECONDS ?= 60

fuzz: $(INSTALLED) ## feed the egress proxy's parsers damaged messages for FUZZ_SECONDS each
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/egress_proxy/test_fuzz.py

setup: $(INSTALLED) ## a container engine that answers, and the image `base`
	@$(BIN)/python -m container_runtime.setup all

grpcurl: ## fetch grpcurl for the tests that use it, where Go can
	@if command -v grpcurl >/dev/null || [ -x $(TOOLS)/grpcurl ]; then :; \
	elif command -v go >/dev/null; then \
	  echo "go install $(GRPCURL)"; GOBIN="$(CURDIR)/$(TOOLS)" go install $(GRPCURL); \
	else echo "neither grpcurl nor go is installed: install one of them" >&2; exit 1; fi

postgres: ## fetch PostgreSQL for the tests that use it, where Debian's packages are
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "apt-get install postgresql"; \
	  apt-get -qq update && apt-get -qq install --no-install-recommends postgresql >/dev/null; \
	else echo "PostgreSQL is not installed: install it (postgresql)" >&2; exit 1; fi

clean: ## remove what these targets have made in this folder
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info \
	  benchmarks/out demo-out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: $(INSTALLED) ## as clean, and our images, and the engine if it was started by us
	$(BIN)/python -m container_runtime.setup remove-images
	$(BIN)/python -m container_runtime.setup stop-engine
	$(MAKE) clean

$(INSTALLED): pyproject.toml
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  for candidate in $(INTERPRETERS); do \
	    if "$$candidate" -c '$(ENOUGH)' >/dev/null 2>&1; then \
	      echo "$$candidate -m venv $(VENV)"; \
	      "$$candidate" -m venv --clear $(VENV) && break || exit 1; \
	    fi; \
	  done; \
	fi
	@if ! [ -x $(BIN)/python ]; then \
	  echo "No Python 3.11 or newer with the venv module was found. Install one (on Debian and" \
	    "Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=…" >&2; \
	  exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
