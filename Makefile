# Everything needs only git, make, Python ≥ 3.11 and pip; the environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SEED ?= 0
EXTRAS := dev,vision,text,huggingface,flower,privacy,secure,tracking,cluster,search,frames,docs

.PHONY: demo test flower cluster newcomer check lint types docs dist lock bench bench-files mutants fuzz results-closed results-fed3r results-fedpcl results-fedseq results-finetune results-flic results-personalisation results-privacy results-robust results-text results-attacks results-channels results-deployment clean

# Dependencies come by the hashes in lock/ where those were made for (Python 3.11 on Linux x86_64, the CPU build of
# torch), elsewhere or with LOCK=ranges by the ranges in pyproject.toml.
HERE := $(shell $(PYTHON) -c 'import platform as p; print(*p.python_version_tuple()[:2], p.system(), p.machine())')
LOCK ?= $(if $(filter 3-11-Linux-x86_64,$(subst $() ,-,$(HERE))),hashes,ranges)
# What is imported is compiled when it is; all of torch and scipy would be most of an installation's work.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
ifeq ($(LOCK),ranges)
install = $(PIP) --constraint constraints.txt --editable '.$(2)'
else
install = $(PIP) --require-hashes --no-deps --only-binary :all: --requirement lock/$(1).txt && \
	$(PIP) --no-deps --no-build-isolation --no-index --editable .
endif

$(VENV)/core: pyproject.toml constraints.txt lock/core.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,core,)
	@touch $@

$(VENV)/all: $(VENV)/core lock/all.txt
	$(call install,all,[$(EXTRAS)])
	@touch $@

lock: $(VENV)/core  ## The lock files anew, from what pip finds today, and the licences of what they name
	$(BIN)/python tools/lock.py
	$(MAKE) $(VENV)/all
	$(BIN)/python tools/licences.py

demo: $(VENV)/core  ## Compare three ways to learn from heterogeneous clients; writes report.html
	$(BIN)/hansa compare digits-fedavg digits-fed3r digits-fed3r-fedavg --report report.html

test: $(VENV)/all  ## All fast tests
	$(BIN)/pytest -n 2

flower: $(VENV)/all  ## A real federation on Flower, on this machine: some minutes
	$(BIN)/pytest -m flower tests/deploy

newcomer:  ## All that the README and the tutorials say, from `git clone` on with an empty HOME, and the time it takes
	$(PYTHON) -m tests.newcomer

cluster: $(VENV)/all  ## A Ray cluster of two machines, both of them this one: a minute or two
	$(BIN)/pytest -m cluster tests/engines

lint: $(VENV)/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/all
	$(BIN)/mypy

docs: $(VENV)/all  ## A searchable site of docs/ and the docstrings in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(VENV)/all  ## Wheel and sdist in dist/, and the wheel tried in an environment of its own
	$(BIN)/python tools/dist.py

check: lint types docs dist test flower cluster  ## Exactly what CI runs

bench: $(VENV)/all  ## Speed as ratios within one run: the loops, the statistics, and PyPI peers in environments of their own
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/families.py
	$(BIN)/python benchmarks/fedpcl.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/fedseq.py
	$(BIN)/python benchmarks/flic.py
	$(BIN)/python benchmarks/grouping.py
	$(BIN)/python benchmarks/ridge_scale.py
	$(BIN)/python benchmarks/million_clients.py
	$(BIN)/python benchmarks/compare_peers.py

bench-files: $(VENV)/all  ## Pictures on disk at Landmarks' scale (164,172 JPEGs, 2 GB of disk), and a real network on some; half an hour on two cores
	$(BIN)/python benchmarks/from_files.py
	$(BIN)/python benchmarks/from_files.py --rates --backbone lite0
	$(BIN)/python benchmarks/extraction.py

mutants: $(VENV)/all  ## Mistakes put into the package one at a time, which the tests must notice; some minutes
	$(BIN)/python tests/mutants.py

fuzz: $(VENV)/all  ## Campaigns of damage, each with 0 failures: long; FUZZ_SEED chooses another
	$(BIN)/python -m tests.fuzz plans --cases 1500 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz messages --cases 6400 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz inputs cards --cases 1000 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz uploads --cases 200 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz damage --cases 300 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz crashes --cases 200 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz kills --cases 102 --seed $(FUZZ_SEED)

results-fed3r: $(VENV)/all  ## docs/results/fed3r.md from real data; finished runs are found, not repeated
	$(BIN)/python experiments/fed3r.py

results-closed: $(VENV)/all  ## docs/results/closed.md from real data: closed forms, alone and as a start; minutes
	$(BIN)/python experiments/closed.py

results-personalisation: $(VENV)/all  ## docs/results/personalisation.md from real data; HANSA_WORKERS runs so many at a time
	$(BIN)/python experiments/personalisation.py

results-robust: $(VENV)/all  ## docs/results/robust.md: robust rules while a fifth of the clients attack; minutes
	$(BIN)/python experiments/robust.py

results-privacy: $(VENV)/all  ## docs/results/privacy.md: accuracy against ε on the digits; some minutes
	$(BIN)/python experiments/privacy.py

results-fedpcl: $(VENV)/all  ## docs/results/fedpcl.md from real data; five hours of a core, HANSA_WORKERS runs so many rows at a time
	$(BIN)/python experiments/fedpcl.py

results-fedseq: $(VENV)/all  ## docs/results/fedseq.md from real data; hours on a CPU, minutes on a GPU
	$(BIN)/python experiments/fedseq.py

results-finetune: $(VENV)/all  ## docs/results/finetune.md: the whole EfficientNet-Lite0 after Fed3R; needs a GPU, but for its smaller pictures
	HANSA_DEVICE=cuda $(BIN)/python experiments/finetune.py

results-text: $(VENV)/all  ## docs/results/text.md: who speaks in Shakespeare, by MiniLM with LoRA after Fed3R; an hour of a core, HANSA_DEVICE=cuda is faster
	$(BIN)/python experiments/text.py

results-attacks: $(VENV)/all  ## docs/results/attacks.md: label flipping on the digits and CIFAR-10, and recovery with a generator; half an hour of a core
	$(BIN)/python experiments/attacks.py

results-channels: $(VENV)/all  ## docs/results/channels.md: accuracy and bytes of FedAvg through every channel; ten minutes
	$(BIN)/python experiments/channels.py

results-deployment: $(VENV)/all  ## docs/results/deployment.md: seconds, trips and bytes beside Flower's own FedAvg; some minutes
	$(BIN)/python benchmarks/deployment.py --page docs/results/deployment.md

results-flic: $(VENV)/all  ## docs/results/flic.md: clients whose inputs differ, with and without alignment; hours, most of them for digits by a CNN (HANSA_DEVICE=cuda)
	$(BIN)/python experiments/flic.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
