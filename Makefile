# kvbench: `make table1` runs the main job, `make test` the tests; both set themselves up on a fresh machine.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KVBENCH := $(BIN)/kvbench
STORE ?= runs/table1
PROFILE ?= embedded
# Releases the project is tested with; `make setup CONSTRAINTS=` takes whatever pyproject.toml allows.
CONSTRAINTS ?= -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup table1 rcr claims documents bench test experiments slurm lint embedded

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## make .venv, fetch the small language model, draw the embedded pages (once)

# What decides the drawn pages: after a change that says something else they are drawn again; cells go by what
# is drawn, not by this.
PAGES := $(addprefix kvbench/embedded/,vocabulary.py page.py layout.py kinds.py pages.py draw.py sets.py)

$(VENV)/.ready: pyproject.toml constraints.txt $(PAGES)
	@command -v $(PYTHON) >/dev/null || { echo "kvbench: Python 3.10 or newer is needed; install it or name it with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[dev]"
	$(BIN)/python -m kvbench.embedded.language
	$(BIN)/python -m kvbench.embedded.sets
	@touch $@

table1: setup  ## Table 1: uncompressed and compressed at three budgets (LIMIT=2: quick; PROFILE=paper: the papers' models)
	@$(KVBENCH) run experiment=table1 profile=$(PROFILE) store=$(STORE) $(LIMIT:%=limit=%)
	@$(KVBENCH) table store=$(STORE)
	@$(KVBENCH) report store=$(STORE) overlays=2 figures=true

documents: setup  ## real text through the bare language model: fidelity by method and budget
	@$(KVBENCH) run experiment=documents store=runs/documents
	@$(KVBENCH) table store=runs/documents

rcr: setup  ## re-selection while decoding: long descriptions and short answers, tables and traces
	@$(KVBENCH) run experiment=rcr_detailcaps profile=$(PROFILE)
	@$(KVBENCH) run experiment=rcr_threshold_exact profile=$(PROFILE)
	@$(KVBENCH) run experiment=rcr_oracle_vqa profile=$(PROFILE)
	@$(KVBENCH) table store=runs/rcr
	@$(KVBENCH) analyze drift store=runs/rcr

CLAIMS := claims claims_equal claims_terms claims_diversity claims_windows claims_text rcr_detailcaps rcr_threshold_exact rcr_oracle_vqa
claims: setup  ## the papers' claims on the embedded model, with verdicts (LIMIT=3: quick; the whole continues it)
	@for name in $(CLAIMS); do $(KVBENCH) run experiment=$$name store=runs/claims $(LIMIT:%=limit=%) || exit $$?; done
	@$(KVBENCH) observe experiment=claims_text store=runs/claims $(LIMIT:%=limit=%)
	@$(KVBENCH) claims store=runs/claims $(LIMIT:%=limit=%)

# A table of the papers: make bacon-table4, make ecokv-table3 (PROFILE=paper: the papers' models and data).
# Two rules: one with two patterns would make only the first of `make bacon-table1 ecokv-table1`.
define TABLE
	@$(KVBENCH) run experiment=$(subst -,_,$@) profile=$(PROFILE) $(LIMIT:%=limit=%)
	@$(KVBENCH) table $(subst -,_,$@)
endef
bacon-%: setup
	$(TABLE)
ecokv-%: setup
	$(TABLE)

# A figure of the papers: make ecokv-figure2, make bacon-figure1 (LIMIT=5: quick). BACON's grids are overlays.
ecokv-figure%: setup
	@$(KVBENCH) run experiment=$(subst -,_,$@) profile=$(PROFILE) $(LIMIT:%=limit=%)
	@$(KVBENCH) figures store=runs/$(subst -,_,$@)

bacon-figure%: setup
	@$(KVBENCH) run experiment=$(subst -,_,$@) profile=$(PROFILE) $(LIMIT:%=limit=%)
	@$(KVBENCH) figures store=runs/$(subst -,_,$@) overlays=4

bench: setup  ## measure the grid, overhead, selection and scoring (runs/bench/*.json)
	@$(KVBENCH) bench grid
	@$(KVBENCH) bench grid model=smollm2 single=8
	@$(KVBENCH) bench overhead
	@$(KVBENCH) bench select
	@$(KVBENCH) bench score

test: setup  ## run the tests
	$(BIN)/python -m pytest tests

experiments: setup  ## every experiment small, toys and drawn samples: each to a table without a hole
	$(BIN)/python scripts/experiments_check.py

slurm: setup  ## Table 1 of two samples as an array of a real Slurm on this machine (Debian, root)
	@scripts/slurm_local.sh $(KVBENCH)

lint: setup  ## style of code and imports
	$(BIN)/ruff check kvbench tests scripts
	$(BIN)/ruff format --check kvbench tests scripts

embedded: setup  ## train the embedded model's eyes and adapter again (at most 75 minutes on two cores; resumes)
	$(BIN)/python scripts/embedded/train.py
