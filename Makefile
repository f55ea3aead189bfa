# One command each on a machine with Python 3.11 to 3.14, pip, make and git. `make` alone prints this help.

VENV := .venv
PORT ?= 5000
STUDY ?= masking
TRACKING_URI := $(or $(MLFLOW_TRACKING_URI),sqlite:///$(CURDIR)/mlflow.db)
# Passed on to pytest, e.g. make test ARGS="tests/engine/core -x"
ARGS ?=

SHELL := /bin/bash

export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
# Some images set it; with bytecode, tests are collected sooner.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Named after the folder, so a copied or moved environment (its scripts point to the old place) is built anew.
FOLDER := $(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(FOLDER)
PIP := $(VENV)/bin/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt -e
PROGRESS := awk '/^Collecting/ && ++found % 25 == 0 {print "  found " found " packages"; fflush()} \
  /^Installing/ {print "  unpacking them"; fflush()}'
# $$python makes an environment; Debian's has no ensurepip, so that pip installs itself.
make_venv = $$python -m venv $(1) >/dev/null 2>&1 || { \
  rm -rf $(1); $$python -m venv --without-pip $(1) && $$python -m pip --python $(1)/bin/python install --quiet pip; }
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev shell demo demo-study repro experiments reference test test-all drills test-numerics test-oldest setup-oldest ui lint pages docs pictures recording plots clean

help:  ## print this help
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(STAMP)  ## make .venv with the pinned dependencies and the package

$(STAMP): pyproject.toml constraints.txt
	@test -e $(STAMP) && $(VENV)/bin/python -c '$(SUPPORTED)' 2>/dev/null || rm -rf $(VENV)
	@rm -f $(STAMP)
	@test -d $(VENV) || { \
	  for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	    $$python -c '$(SUPPORTED)' 2>/dev/null && break; python=; \
	  done; \
	  test -n "$$python" || { echo "make setup: no Python 3.11 to 3.14 found; name one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	  echo "making $(VENV) with $$($$python --version), pinned dependencies (a few minutes)"; \
	  $(call make_venv,$(VENV)); \
	}
	@set -o pipefail; $(PIP) ".[all]" | $(PROGRESS)
	@touch $(STAMP)
	@echo "ready; to use realm-lab and dvc in this shell: source $(VENV)/bin/activate (or: make shell)"

setup-dev: $(STAMP)-dev  ## add what tests, checks and documentation need

$(STAMP)-dev: $(STAMP)
	@echo "adding development tools"
	@set -o pipefail; $(PIP) ".[all,dev]" | $(PROGRESS)
	@touch $@

shell: setup  ## open a shell with the environment active
	@$${SHELL:-/bin/bash} -i

demo: setup  ## ask a finished study that comes with the package, within a minute
	@realm-lab demo

demo-study: setup  ## train the study of the demo again and put it into the package (for maintainers), 5 minutes
	@$(VENV)/bin/python -m docs.demo_study build/demo

repro: setup  ## run the whole pipeline (dvc repro), about 5 minutes on two cores
	@start=$$(date +%s); dvc repro; code=$$?; test $$code = 0 || exit $$code; seconds=$$(( $$(date +%s) - start )); \
	sed -n '/^\*\*/{s/\*\*//g;s/^/\n/;p;q;}' reports/default/report.md; \
	printf '\nDone in %d min %d s. The results: reports/default/report.md, and reports/index.html for all studies.\n' \
	  $$((seconds / 60)) $$((seconds % 60)); \
	echo "Next: make ui shows the runs in MLflow; then"; \
	echo "  source $(VENV)/bin/activate"; \
	echo "  realm-lab ask \"who is the mayor of nirter ?\""; \
	echo "  realm-lab sweep quick --dry-run    # a first ablation, and how long it takes"

experiments: setup  ## a table of the DVC experiments: headline metrics, and the parameters that differ
	@COLUMNS=200 dvc exp show --only-changed --hide-workspace --drop '^(data/prepared|models|reports|params.yaml|realm_lab)'

reference: setup  ## make your results of STUDY the committed reference results (for maintainers)
	@test -f reports/$(STUDY)/report.md || { echo "make reference: no reports/$(STUDY); run realm-lab sweep $(STUDY)" >&2; exit 1; }
	rm -rf reports/reference/$(STUDY)
	cp -R reports/$(STUDY) reports/reference/
	@test $(STUDY) != default || { rm -rf reports/reference/curves; cp -R reports/metrics.json reports/curves reports/reference/; }
	@$(VENV)/bin/python -c 'from realm_lab.evidence.report.index import write_index; print(write_index("reports/reference"))'

CORES := $$(getconf _NPROCESSORS_ONLN)
PYTEST := $(VENV)/bin/python -m pytest --dist loadfile --no-loadscope-reorder
test: setup-dev  ## run every quick test, in parallel; ARGS="..." goes to pytest
	@$(PYTEST) -n auto -m "not slow" $(ARGS)

# More processes than cores: a fifth of the time of the slow tests is waiting, for locks and ends of processes. Drills
# wait longer, for SLURM: with five processes on two cores, 7 % of the cores' time is left.
test-all: setup-dev  ## run the slow tests too
	@$(PYTEST) -n $$(( $(CORES) + 1 )) -m "not drill" $(ARGS)

drills: setup-dev  ## test with SLURM, a browser, PostgreSQL, new environments, random kills and damage, the tutorial
	@$(PYTEST) -n $$(( $(CORES) + 3 )) -m drill $(ARGS)

OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed-$(FOLDER)
setup-oldest: $(OLDEST_STAMP)

# Without pip's cache: the lowest PyTorch comes with CUDA, and its gigabytes would lie on the disk twice.
$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt
	@test -e $@ || rm -rf $(OLDEST)
	@test -d $(OLDEST) || { python=$$(command -v $(PYTHON) python3.11 | head -n 1); $(call make_venv,$(OLDEST)); }
	@set -o pipefail; $(OLDEST)/bin/python -m pip install --progress-bar off --disable-pip-version-check --no-cache-dir \
	  -c constraints-oldest.txt -e ".[engine,platform,faiss]" pytest pytest-xdist hypothesis ir-measures | $(PROGRESS)
	@touch $@

# A part of the quick tests, without those that start studies: 7 minutes of one core.
test-oldest: setup-oldest  ## run a quick part of the tests with the lowest versions that pyproject.toml allows, in .venv-oldest
	@PATH=$(CURDIR)/$(OLDEST)/bin:$$PATH $(OLDEST)/bin/python -m pytest -q -n auto --dist loadfile -m "not slow" \
	  tests/test_proofs.py tests/test_environments.py tests/engine/params tests/evidence/statistics tests/engine/corpus tests/engine/models \
	  tests/engine/evaluation tests/lab/tracking $(ARGS)

# The numbers must not depend on the processor: the same tests with its other vector instructions. `make test` runs with
# those that PyTorch chooses.
test-numerics: setup-dev  ## run the numerical tests with the lesser vector instructions of the processor
	@own=$$($(VENV)/bin/python -c 'import torch; print(torch.backends.cpu.get_cpu_capability().lower())'); \
	for capability in default avx2 avx512; do \
	  test $$capability = $$own && break; \
	  echo "ATEN_CPU_CAPABILITY=$$capability"; \
	  ATEN_CPU_CAPABILITY=$$capability $(VENV)/bin/python -m pytest -q -n auto --dist loadfile -m "not slow" \
	    tests/test_proofs.py tests/engine/training/test_golden.py tests/engine/training/test_distributed.py \
	    tests/engine/training/test_resume.py tests/engine/models tests/parity tests/engine/retrieval/test_exact.py $(ARGS) || exit 1; \
	done

# The address is in the environment, not on command lines, since it may hold a password.
ui: export MLFLOW_TRACKING_URI := $(TRACKING_URI)
ui: export MLFLOW_BACKEND_STORE_URI := $(TRACKING_URI)
ui: export MLFLOW_REGISTRY_STORE_URI := $(TRACKING_URI)
ui: export PYTHONWARNINGS := ignore
ui: setup  ## mirror the runs into MLflow and show them on 127.0.0.1; PORT=5000
	@$(VENV)/bin/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || { \
	  echo "make ui: port $(PORT) is in use, perhaps by another make ui; name another: make ui PORT=5001" >&2; exit 1; }
	@case "$$MLFLOW_TRACKING_URI" in http*) realm-lab mirror;; *) \
	  realm-lab mirror --address http://127.0.0.1:$(PORT) && \
	  echo "starting MLflow (some seconds); then open a link above; stop with Ctrl-C" && \
	  MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false exec mlflow ui --host 127.0.0.1 --port $(PORT) --workers 1 \
	    --uvicorn-opts "--log-level warning";; esac

lint: setup-dev  ## ruff check, ruff format --check, mypy, the rules of wording, the claims of our texts
	ruff check .
	ruff format --check .
	mypy
	$(VENV)/bin/python -m tests.words
	$(VENV)/bin/python -m realm_lab claims

pages: setup  ## write params.yaml and the generated pages of docs/ again; the values filled in are kept
	@$(VENV)/bin/python -m docs.reference_pages

docs: setup-dev  ## build the documentation into site/
	@$(VENV)/bin/python docs/site_pages.py
	zensical build --strict

plots: setup-dev  ## draw the curves (dvc plots show) in a page that needs no network
	@$(VENV)/bin/python docs/offline_plots.py

pictures: STUDY := default
pictures: setup-dev  ## take the pictures of docs/mlflow.md from the runs of the default study
	@$(VENV)/bin/python docs/mlflow_screenshots.py --study $(STUDY)

recording: setup  ## record `realm-lab demo` and a question as the animated picture docs/demo.svg
	@$(VENV)/bin/python docs/terminal_recording.py

clean:  ## remove the environment and the caches; data, models, runs and reports stay
	rm -rf $(VENV) $(OLDEST) build dist site *.egg-info .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
