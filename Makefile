# Two commands set everything up by themselves and run: `make rehearse` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIBRARIES := libibverbs1 libnl-3-200 librdmacm1
SANDBOXES := runsc bubblewrap slurm-wlm munge skopeo umoci
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.DEFAULT_GOAL := help
.PHONY: help setup rehearse test sandboxes unit lint docs site lock clean

help: ## Show what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## Make .venv with the whole CPU stack (about 8 GB, a few minutes)

rehearse: $(READY) ## Run the whole loop on this machine's CPU, features off and on, with a report
	$(BIN)/periodic --plugins periodic rehearse --report rehearsal/report.html --json rehearsal/result.json

test: $(READY) sandboxes lint ## Run every test
	$(BIN)/pytest --numprocesses 2

sandboxes: ## Install what the tests of sandboxes run: gVisor, bubblewrap, Slurm, skopeo, umoci
	@missing=; for name in $(SANDBOXES); do dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing Debian packages:$$missing"; \
	  $(SUDO) apt-get update -qq; \
	  for name in $$missing; do \
	    $(SUDO) apt-get install -y -qq --no-install-recommends $$name \
	      || echo "$$name is not installed: the tests that need it are skipped and say so"; \
	  done; \
	fi

unit: $(READY) ## Run the tests that need no upstream
	$(BIN)/pytest tests/unit

lint: $(READY) ## Check style and the one-way import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

docs: $(READY) ## Write the pages that are made from the code
	$(BIN)/python docs/make_hooks_page.py
	$(BIN)/python docs/make_cli_page.py
	$(BIN)/python docs/make_compatibility_page.py
	$(BIN)/python docs/make_feature_pages.py
	$(BIN)/python docs/make_transcripts.py

site: $(READY) ## Build the documentation site into build/site, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: $(READY) ## Write the versions that are installed now into requirements/lock.txt
	( head -2 requirements/lock.txt; $(BIN)/pip freeze --exclude-editable ) > requirements/lock.new
	mv requirements/lock.new requirements/lock.txt

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .cache rehearsal build *.egg-info

$(READY): pyproject.toml setup.py requirements/lock.txt
	@missing=; for name in $(LIBRARIES); do dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing $$($(PYTHON) -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')"; \
	if [ -n "$$missing" ]; then \
	  echo "installing Debian packages:$$missing"; \
	  $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; \
	fi
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed for the rehearsal; set PYTHON=/path/to/python3.11")'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing the whole CPU stack into $(VENV): about 8 GB on disk, a few minutes"
	$(BIN)/python -m pip install --quiet --progress-bar off --constraint requirements/lock.txt --editable '.[pbox,rehearsal,test]'
	touch $@
