# bench and test set up what they need in .venv, once, and again when pyproject.toml or constraints.txt changes.
#   make bench ARGS="-k rmsnorm"     ARGS goes to the command behind the target
#   make bench PYTHON=python3        that interpreter as it is: no .venv, nothing installed

ifeq ($(origin PYTHON),command line)
  python := $(PYTHON)
else
  python := .venv/bin/python
  ready := .venv/ready
  parallel := -n 2
endif

.PHONY: help bench test check report clean
.DEFAULT_GOAL := help

help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-13s %s\n", $$1, $$2}'

bench: $(ready) ## parity, then time, of some 50 cases, and a report of them
	@$(python) -m harness bench --profile quick $(ARGS) --report

test: $(ready) ## all tests; those that need a GPU skip where there is none
	@$(python) -m pytest $(parallel) $(ARGS)

check: $(ready) ## parity alone: seeds, poisoned outputs, guard bands, adversarial inputs
	@$(python) -m harness check $(ARGS)

report: $(ready) ## tables and plots of the last run
	@$(python) -m harness report $(ARGS)

clean: ## remove .venv and every cache in this folder; results stay
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .benchmarks
	find reference optimized harness -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv/installing outlives an install that was interrupted, and then everything starts anew.
.venv/ready: pyproject.toml constraints.txt
	@if [ -e .venv/installing ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
	  for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	  done; \
	  [ -n "$$python" ] || { echo "twinbench needs Python 3.11 or newer, and found none" >&2; exit 1; }; \
	  echo "Setting up .venv with $$($$python --version): once, and a few minutes where PyTorch is still to be fetched"; \
	  rm -rf .venv && mkdir .venv && touch .venv/installing && $$python -m venv .venv; \
	fi
	@touch .venv/installing
	@.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[test]'
	@rm .venv/installing
	@touch $@
