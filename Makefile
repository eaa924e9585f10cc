# One command each: set up, demo, check, test, bench. `make help` lists them.
# PYTHON is the interpreter that the environment is made with (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
STAMP := $(VENV)/.set-up
SOURCES := .

# pytest-xdist workers; each test process keeps to one thread so that the workers do not fight over the cores.
WORKERS ?= 2
COVERAGE ?= 90
BENCH ?=

.PHONY: help setup demo docs format check test bench clean
.DEFAULT_GOAL := help

help:
	@echo "make setup    make the environment in $(VENV): torch, the package, all that tests need"
	@echo "make demo     ask the bundled model about bundled images"
	@echo "make format   put every file into the project's format"
	@echo "make docs     write the generated pages of docs/ again"
	@echo "make check    format, lint and types, changing nothing"
	@echo "make test     check, then every test with coverage (at least $(COVERAGE) %)"
	@echo "make bench    measure speed and memory beside transformers and nnsight"
	@echo "make clean    remove the environment and every cache"

setup: $(STAMP)

# torch comes first and alone: where a CPU build is provided, plain pip takes it, and the rest then finds torch there.
# pip may warn about its own version or about scripts outside PATH; such lines are shown and change nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cutaway needs Python 3.11 or newer, and $(PYTHON) is %d.%d; run make setup PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,figures]'
	$(BIN)/python -c "import cutaway"
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

format: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: $(STAMP)
	$(BIN)/python -m docs.generate

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/python -m tests.repo.sizes

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --cov --cov-report=term --cov-fail-under=$(COVERAGE)

# The peers that nothing else needs live in an environment of their own, which sees this one's packages. Without a
# network it stays as it is, and the rows of those peers are left out. BENCH is handed on: `make bench BENCH=--resume`.
bench: $(STAMP)
	test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_paths()['purelib'])" \
	  > $$(echo $(PEERS)/lib/python3*/site-packages)/project.pth
	-test -f $(PEERS)/.set-up || ($(PEERS)/bin/python -m pip install --quiet nnsight==0.8.1 && touch $(PEERS)/.set-up)
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .ruff_cache .hypothesis .coverage build dist src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
