# make run    measure every fix on every shipped case, on this machine, and write the report (runs/main)
# make test   lint, types and tests
# make lint   lint and types only
# make validation  error rates of the instrument and of other tools, at reduced size (runs/validation)
# make systems  the five systems, every fix, eager and compiled (runs/systems); fills the tables of docs/
# make asv    the history over commits: an environment at torch 2.13.0, every tracked figure (about ten minutes)
# make asv-versions  the same figures under each torch version of asv.versions.json (runs/torch-versions); long, resumable
# make gpu    on a machine with an NVIDIA GPU: tests, systems, trials, gate, sound; eight minutes, resumable (runs/gpu)
# make bench  the asv and pytest-benchmark adapters, one quick pass each
# make site   the documentation as a site, in site/ (open site/index.html)
# make docs   write the blocks of docs/ that results fill, and what the worked examples print
# make test-slow  the tests that `make test` leaves out: slow ones, and those of validation/ and tools/
# make lock   resolve constraints.txt anew; LOCK_ARGS=--upgrade raises what may be raised
# make clean  remove the environment and what tools left behind; keeps runs/
#
# PYTHON=python3.12 picks the interpreter; RUN_ARGS="--set minutes=5 --mode eager,compiled" goes to `precision-eval run`;
# OUT=runs/other keeps several runs apart; PYTEST_ARGS="-k gate" goes to pytest.

PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/main
RUN_ARGS ?=
PYTEST_ARGS ?=

# Installing compiles nothing: most modules are never imported, and the first import of the others keeps what it compiles.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder -p no:benchmark

.DEFAULT_GOAL := help
LOCK_ARGS ?=
.PHONY: help install run test lint lock test-slow validation systems gpu asv asv-versions bench docs site clean

help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

install: $(DEV_STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] <= (3, 13) else \
	    f"Python {v[0]}.{v[1]} found, 3.11 to 3.13 needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(RUN_STAMP)

run: $(RUN_STAMP)
	$(BIN)/precision-eval run --out $(OUT) $(RUN_ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lint and types run during the tests; what they print comes after the tests' own output.
test: $(DEV_STAMP)
	@log=$$(mktemp); $(MAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	    $(PYTEST) -m "not slow" $(PYTEST_ARGS); tests=$$?; wait $$lint; types=$$?; cat "$$log"; rm -f "$$log"; \
	    [ $$tests -eq 0 ] && [ $$types -eq 0 ]

test-slow: $(DEV_STAMP)
	$(PYTEST) -m slow $(PYTEST_ARGS)
	$(PYTEST) tests/validation tests/tools $(PYTEST_ARGS)

# CUDA's packages come with torch's build, which is the index's choice.
lock: $(DEV_STAMP)
	@old=$$(mktemp); cp constraints.txt "$$old"; $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	    --extra dev --no-header --no-annotate $(LOCK_ARGS) pyproject.toml -o "$$old" && \
	    { grep '^#' constraints.txt; grep -Ev '^(#|nvidia-|cuda-|triton)' "$$old"; } >"$$old.new" && \
	    mv "$$old.new" constraints.txt; rm -f "$$old"

validation: $(DEV_STAMP)
	$(BIN)/python -m validation --size quick --out runs/validation

SYSTEMS := metavoice-*,dia-*,imaginairy-*,cogvideo-*
SYSTEMS_OUT ?= runs/systems

systems: $(DEV_STAMP)
	$(BIN)/precision-eval run --case '$(SYSTEMS)' --mode eager --out $(SYSTEMS_OUT) --set processes=8 --set budget=40
	$(BIN)/precision-eval run --case '$(SYSTEMS)' --mode compiled --measure trace,latency --out $(SYSTEMS_OUT) --set budget=2

GPU_ARGS ?=

gpu: $(DEV_STAMP)
	$(BIN)/python -m tools gpu $(GPU_ARGS)

site: $(DEV_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

asv: export PIP_NO_COMPILE := 1
asv: $(DEV_STAMP)
	$(BIN)/asv machine --yes
	$(BIN)/asv run --record-samples --show-stderr

# On Linux the default index has CUDA builds of several GB; UV_TORCH_BACKEND=cpu takes CPU builds.
SWEEP_ARGS ?=

asv-versions: $(DEV_STAMP)
	$(BIN)/python -m tools torch-sweep $(SWEEP_ARGS)

bench: $(DEV_STAMP)
	$(BIN)/asv machine --yes
	$(BIN)/asv run --python=same --quick --show-stderr
	$(BIN)/python -m pytest benchmarks/pytest --benchmark-columns=median,iqr,rounds

docs: $(DEV_STAMP)
	$(BIN)/python -m tools h200
	$(BIN)/python -m tools docs
	$(BIN)/python -m validation --page
	$(BIN)/python -m tools.docs_examples docs/example-*.md docs/story-*.md

clean:
	rm -rf $(VENV) build dist site *.egg-info .asv .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
