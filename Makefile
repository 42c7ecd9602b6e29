# Needs python3 (3.11 or later) and make; everything else goes into .venv.
# Another Python:       make PYTHON=python3.12 test
# More test processes:  make WORKERS=8 test
# Options go through:   make ARGS="tests/test_layering.py -x" test

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

# pip shows its progress to a person and keeps quiet in a log.
PIP_INSTALL = .venv/bin/python -m pip install --disable-pip-version-check \
  $(shell test -t 2 || echo --quiet) --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-browser test-docs test-gguf test-integrations test-openvino test-peers test-ray test-versions test-vllm prove thorough soak lint types wheel release bench pages site clean moved

help:
	@echo "make demo    watch a language model write through a draft tree"
	@echo "make test    run the tests"
	@echo "make test-browser  run the tests of the trace viewer in Chromium"
	@echo "make test-docs     run the pages and examples of the documentation"
	@echo "make test-integrations   run the tests of lm-eval and TRL, which are large to install"
	@echo "make test-gguf     run the tests of GGUF files that llama.cpp runs; building it takes half an hour"
	@echo "make test-openvino run the tests of passes that OpenVINO runs"
	@echo "make test-peers    run the tests beside speculators' own classes"
	@echo "make test-ray      run the tests of a Ray cluster on this machine, with workers that die"
	@echo "make test-versions run a part of the tests on the oldest and the newest versions of what draftwood needs"
	@echo "make test-vllm     prove the samplers of vLLM's wheel (340 MB), run by Triton's interpreter"
	@echo "make prove   prove every policy with every lossless verifier, and catch known mistakes"
	@echo "make thorough the same on 100 toy models, and long searches of the laws; tests in full"
	@echo "make soak    faults, Ctrl-C, long texts, runs that end early, hostile files, random rows, shared decoders and requests, at length"
	@echo "make lint    check style, formatting, layering and plain English"
	@echo "make types   check types over the installed wheel, and of the tests"
	@echo "make wheel   build the wheel into dist/"
	@echo "make release build and check the wheel and the sdist of the last commit into dist/"
	@echo "make bench   race the decoders, as draftwood bench does"
	@echo "make pages   write the tables of the documentation's pages from the code and the results"
	@echo "make site    build the documentation into site/, warnings as errors"
	@echo "make clean   remove the environment and everything that was built"
	@echo "The first call sets up .venv with locked versions; later calls reuse it."

demo: .venv/.ready-test
	@.venv/bin/draftwood demo $(ARGS)

test: .venv/.ready-test
	@echo "Running the tests in $(WORKERS) processes of one thread each."
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(ARGS)

test-docs: .venv/.ready-test
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) -m 'docs and not thorough' \
	  tests/test_docs.py tests/test_tutorials.py tests/test_examples.py $(ARGS)

test-integrations: .venv/.ready-integrations
	@.venv/bin/python -m pytest -m integrations tests/framework/test_lm_eval.py tests/framework/test_trl.py $(ARGS)

test-gguf: .venv/.ready-gguf
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) -m 'gguf and not thorough' tests/gguf_models $(ARGS)

test-openvino: .venv/.ready-openvino
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) -m 'openvino and not thorough' \
	  tests/backends/test_openvino.py tests/backends/test_openvino_recurrent.py tests/backends/test_kept_models.py tests/backends/test_bound_requests.py $(ARGS)

test-peers: .venv/.ready-peers
	@.venv/bin/python -m pytest -m peers tests/peers $(ARGS)

test-ray: .venv/.ready-ray
	@.venv/bin/python -m pytest -m ray tests/apps/test_ray.py $(ARGS)

test-browser: .venv/.ready-browser
	@.venv/bin/python -m pytest -m browser tests/apps/test_view_browser.py $(ARGS)

test-versions: .venv/.place
	@.venv/bin/python -m tests.versions --workers $(WORKERS) $(or $(ARGS),lowest newest)

test-vllm: .venv/.ready-vllm
	@.venv/bin/python -m pytest -m vllm tests/peers/test_vllm.py $(ARGS)

prove: .venv/.ready-test
	@.venv/bin/draftwood prove --processes $(WORKERS) $(ARGS)
	@.venv/bin/python -m tests.mutations

thorough: .venv/.ready-test
	@echo "Proving on 100 toy models and searching the laws thoroughly. This takes some two and a half hours on two cores."
	@.venv/bin/draftwood prove --models 100 --processes $(WORKERS)
	@.venv/bin/python -m tests.mutations
	@.venv/bin/python -m tests.generate_fuzz --calls 5000 --processes $(WORKERS)
	@.venv/bin/python -m tests.configurations --count 3000 --processes $(WORKERS)
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal \
	  --draftwood-profile=thorough -m 'not browser' tests/framework tests/strategies
	@.venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal -m thorough \
	  --ignore=tests/framework --ignore=tests/strategies tests

soak: .venv/.ready-test
	@echo "Soaking: faults, interrupts, long texts, kills, hostile files. This takes some 40 minutes on two cores."
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 DRAFTWOOD_KERNELS=off \
	  .venv/bin/python -m tests.soak $(ARGS)

lint: .venv/.ready-lint
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check .
	@.venv/bin/python -m pytest --quiet tests/test_layering.py tests/test_plain_english.py

types: .venv/.place
	@PYTHON=$(PYTHON) .ci/types .venv/installed

wheel: .venv/.ready-test
	@rm -rf build dist
	@.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@echo "Built $$(ls dist/*.whl)."

release:
	@PYTHON=$(PYTHON) .ci/release dist

bench: .venv/.ready-bench
	@.venv/bin/draftwood bench $(or $(ARGS),--widen 350e6)

pages: .venv/.ready-test
	@.venv/bin/python docs/_site/pages.py

site: .venv/.ready-docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "Built site/index.html."

clean:
	@rm -rf .venv .venv-lowest .venv-newest build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was copied or moved would go on running the code of the old place.
ifneq ($(wildcard .venv/.place),)
ifneq ($(shell cat .venv/.place),$(CURDIR))
.venv/.place: moved
endif
endif

.venv/.place:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here. \
	Install Python 3.11 or later, or name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "draftwood needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) -V 2>&1). \
	Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments. \
	Install its venv module (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "Making a virtual environment in .venv with $$($(PYTHON) -V 2>&1)."
	@$(PYTHON) -m venv $(if $(wildcard .venv/.place),--clear) .venv
	@printf '%s\n' '$(CURDIR)' > $@

.venv/.ready-test: .venv/.place pyproject.toml setup.py constraints.txt
	@echo "Installing draftwood with the locked versions of torch, transformers and the test tools."
	@echo "This takes a few minutes the first time, because torch is large."
	@$(PIP_INSTALL) --editable '.[test]'
	@touch $@
	@echo "Everything is set up."

.venv/.ready-peers: .venv/.ready-test
	@echo "Installing speculators and what its classes import."
	@$(PIP_INSTALL) --editable '.[peers]'
	@$(PIP_INSTALL) --no-deps speculators hs-connectors
	@touch $@

.venv/.ready-vllm: .venv/.ready-test tests/peers/vllm-requirements.txt
	@echo "Installing vLLM without what its samplers do not import."
	@$(PIP_INSTALL) --no-deps -r tests/peers/vllm-requirements.txt
	@touch $@

.venv/.ready-%: .venv/.ready-test
	@echo "Installing the locked versions of the \"$*\" tools."
	@$(PIP_INSTALL) --editable '.[$*]'
	@touch $@
