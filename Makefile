# `make` alone says what there is.
#   PYTHON=python3.12   the Python to build the environment with (3.11 to 3.14)
#   EXTRA=cu12          the CUDA wheels to install: cu12, cu13, none (default: what the NVIDIA driver takes)
#   NEWEST=1            install the newest packages instead of those in constraints.txt
#   VENV=.venv          the folder of the environment
#   ONLY="01 02"        the notebooks to run or to reset, by number or first letters (default: run all)
#   SOLVED=1            run notebooks with the solutions of their exercises, into build/solved
#   FORCE=1             also run the notebooks that are up to date
#   ARGS="-k matmul"    more arguments for pytest, for gpukit bench, or for JupyterLab

PYTHON ?= python3
VENV ?= .venv
EXTRA ?= auto
quoted = '$(subst ','\'',$(1))'
BIN = $(call quoted,$(VENV))/bin
ENVIRONMENT = $(call quoted,$(PYTHON)) tools/environment.py --venv $(call quoted,$(VENV))
MAKEFLAGS += --no-print-directory

.PHONY: help env notebooks lab fresh test bench lint wheel constraints sync record site doctor clean distclean

help:
	@echo 'make notebooks   run every notebook here and write HTML pages: build/index.html'
	@echo 'make lab         open copies of the notebooks, in work/, in JupyterLab'
	@echo 'make fresh       copy a chapter to work/ again: make fresh ONLY=03; your old copy goes to work/backups'
	@echo 'make test        run the tests'
	@echo 'make bench       measure gpukit beside the libraries, or without a GPU what can be measured there'
	@echo 'make doctor      say what this machine has, what is wrong with it, and how to mend it'
	@echo
	@echo 'make lint        check style, types and the directions of imports'
	@echo 'make wheel       build the wheel and use it in a bare environment'
	@echo 'make constraints put the newest packages that work together into constraints.txt'
	@echo 'make sync        refresh notebooks/*.ipynb from notebooks/text/*.py'
	@echo 'make record      sync, run, and store the outputs in notebooks/*.ipynb, to be committed'
	@echo 'make site        build the site of notebooks, docs and API reference: build/site/index.html'
	@echo 'make clean       remove what was built; make distclean: the environment too'
	@echo
	@sed -n 's/^#   /  /p' Makefile

# A Python named by the user is taken; otherwise that of the environment stays, or one that will do is looked for.
env:
	@command -v $(call quoted,$(PYTHON)) >/dev/null || { echo there is no $(call quoted,$(PYTHON)) here\; on Debian or Ubuntu: sudo apt install python3-venv >&2; exit 1; }
	@$(ENVIRONMENT) --extra $(EXTRA) $(if $(NEWEST),--newest) $(if $(filter file,$(origin PYTHON)),,--python $(call quoted,$(PYTHON)))

notebooks: env
	@$(BIN)/python tools/notebooks.py run $(if $(FORCE),--force) $(if $(SOLVED),--solved) $(ONLY)

lab: env
	@$(BIN)/python tools/notebooks.py work
	@$(BIN)/python -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) work/00_start.ipynb

fresh: env
	@$(BIN)/python tools/notebooks.py fresh $(ONLY)

test: env
	@$(BIN)/python -m pytest -q -n auto --dist worksteal $(ARGS)

bench: env
	@$(BIN)/python -m gpukit bench $(ARGS)

lint: env
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pyright --pythonpath $(BIN)/python

wheel: env
	@$(BIN)/python tools/wheel.py

# With the oldest Python: what it can install, the newer ones can too. The CUDA wheels depend on the driver.
constraints:
	@$(MAKE) env PYTHON=python3.11 VENV=build/newest EXTRA=none NEWEST=1
	@build/newest/bin/python -m pip install --quiet -e '.[docs,multi]'
	@build/newest/bin/python -m pip freeze --exclude-editable | grep -Eiv '^(cuda|nvidia)' >build/packages.txt
	@{ grep '^#' constraints.txt; cat build/packages.txt; } >build/constraints.txt && mv build/constraints.txt .

sync: env
	@$(BIN)/python tools/notebooks.py sync

record: env
	@$(BIN)/python tools/notebooks.py record $(ONLY)

site: env
	@$(BIN)/python -c 'import furo, myst_nb' 2>/dev/null || $(BIN)/python -m pip install --quiet $(if $(NEWEST),,-c constraints.txt) -e '.[docs]'
	@$(BIN)/python tools/make_site.py

doctor: env
	@$(BIN)/python -m gpukit doctor

clean:
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find gpukit warpstep bench tests tools notebooks -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	@$(ENVIRONMENT) --remove
