# The same targets locally and in CI. `make setup` is a prerequisite of all and costs nothing when nothing changed.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
ARGS ?=
# Tests run in as many processes as there are cores, a file of tests in one of them; `JOBS=0`: all in one.
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
CODE := triptych common services models tests helm $(patsubst %/,%,$(dir $(wildcard benchmarks/__init__.py)))
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo up test test-deploy sbom lint format proto chart bench clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-11s %s\n", $$1, $$2}'

setup: $(STAMP) ## Virtual environment with everything in it, pinned by requirements.lock

$(STAMP): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $@

demo: setup ## Start a cluster, ask it about several pictures, show what was encoded and what was reused
	triptych demo $(ARGS)

up: setup ## Start a cluster on this machine and keep it running
	triptych up $(ARGS)

test: setup ## All tests; ARGS="-k name" chooses
	python -m pytest -n $(JOBS) $(ARGS)

test-deploy: setup ## Build the images, start the compose file, disturb it; root on Debian, skipped where no engine starts
	python -m pytest -m deploy --log-cli-level=INFO --durations=8 tests/deploy $(ARGS)

sbom: ## What is in each image, as CycloneDX files in sbom/; ARGS="--build-arg TORCH_INDEX=" as for the images
	DOCKER_BUILDKIT=1 docker build --target sbom --output sbom $(ARGS) .

lint: setup ## Style, types, import rules, contract
	ruff check $(CODE)
	ruff format --check $(CODE)
	mypy $(CODE)
	lint-imports --no-logo
	buf lint

format: setup ## Rewrite the code in the house format
	ruff check --fix $(CODE)
	ruff format $(CODE)

proto: setup ## Regenerate the stubs in triptych/v1 from proto/
	python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
		proto/triptych/v1/*.proto

chart: setup ## Write what the chart generates from values.yaml, the settings and the panels
	python -m helm.generate
	python -m helm.dashboards

bench: setup ## Measurements; ARGS chooses
	python -m benchmarks $(ARGS)

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist sbom
