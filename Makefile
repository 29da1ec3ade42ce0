# make run    measure every fix on every case, on this machine, and print the report (runs/main)
# make test   lint, types and tests
# make lint   lint and types only
# make prove  how far the measuring can be trusted: error rates beside other tools, at reduced size (runs/proof)
# make systems  the five systems, every fix, eager and compiled (runs/systems); fills the tables of docs/
# make asv    the history over commits: an environment at torch 2.13.0, every tracked figure (about ten minutes)
# make asv-versions  the same figures under each torch version of asv.versions.json (runs/torch-versions); long, resumable
# make bench  the asv and pytest-benchmark adapters, one quick pass each
# make bench-audio   audio_metrics beside its peers, as ratios; installs auraloss and torchmetrics (about ten minutes)
# make bench-doctor  planted dtype faults, located or not; clean models; what observation costs
# make docs-examples  run the worked examples and write what they print into their pages
# make sensitivity  which layers and roles carry the drift, and a mixed policy made of that (about ten minutes)
# make audio-ladder  what known degradations do to each audio metric (runs/audio-ladder)
# make clean  remove the environment and what tools left behind; keeps runs/
#
# PYTHON=python3.12 picks the interpreter; RUN_ARGS="--minutes 5 --mode eager,compiled" goes to `precision-eval run`;
# OUT=runs/other keeps several runs apart.

PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/main
RUN_ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install run test lint prove systems asv asv-versions bench clean bench-audio bench-doctor docs-examples sensitivity audio-ladder

help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] <= (3, 13) else \
	    f"Python {v[0]}.{v[1]} found, 3.11 to 3.13 needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

run: $(STAMP)
	$(BIN)/precision-eval run --out $(OUT) $(RUN_ARGS)

prove: $(STAMP)
	$(BIN)/python -m validation prove --size quick --out runs/proof

SYSTEMS := metavoice-*,dia-*,imaginairy-*,cogvideo-*
SYSTEMS_OUT ?= runs/systems
PAGES := $(addprefix docs/,cogvideo-t5.md dia.md imaginairy.md metavoice-t4.md metavoice.md)

systems: $(STAMP)
	$(BIN)/precision-eval run --case '$(SYSTEMS)' --mode eager --out $(SYSTEMS_OUT) --processes 5 --budget 5
	$(BIN)/precision-eval run --case '$(SYSTEMS)' --mode compiled --measure trace,latency --out $(SYSTEMS_OUT) --budget 2
	$(BIN)/python -m tools.readme.pages $(SYSTEMS_OUT) $(PAGES)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder -p no:benchmark $(PYTEST_ARGS)

asv: $(STAMP)
	$(BIN)/asv machine --yes
	$(BIN)/asv run --record-samples --show-stderr

# On Linux, where the index offers CUDA builds only: SWEEP_ARGS="--torch-build slim"
SWEEP_ARGS ?=

asv-versions: $(STAMP)
	$(BIN)/python -m tools torch-sweep $(SWEEP_ARGS)

bench: $(STAMP)
	$(BIN)/asv machine --yes
	$(BIN)/asv run --python=same --quick --show-stderr
	$(BIN)/python -m pytest benchmarks/pytest --benchmark-columns=median,iqr,rounds

$(VENV)/.installed-bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@touch $@

bench-audio: $(VENV)/.installed-bench
	$(BIN)/python -m validation.audio --out runs/audio-bench/bench.json

bench-doctor: $(STAMP)
	$(BIN)/python -W ignore -m validation.doctor --out runs/doctor.json

docs-examples: $(STAMP)
	$(BIN)/python -m tools.docs_examples docs/example-*.md

sensitivity: $(STAMP)
	$(BIN)/precision-eval sensitivity --out runs/sensitivity

audio-ladder: $(STAMP)
	$(BIN)/precision-eval run --case voice --fix full_float32 --measure synthesis --minutes 5 --out runs/audio-ladder
	$(BIN)/python -m validation.audio_ladder --reference runs/audio-ladder/audio/reference.wav \
	    --null runs/audio-ladder/audio/null.wav --out runs/audio-ladder/ladder

clean:
	rm -rf $(VENV) build dist *.egg-info .asv .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
