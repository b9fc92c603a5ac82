# Everything needs only git, make, Python ≥ 3.11 and pip; the environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,vision,text,huggingface,flower,privacy,tracking

.PHONY: demo test check lint types bench mutants results-fed3r results-personalisation clean

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/all: $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/core  ## Compare three ways to learn from heterogeneous clients; writes report.html
	$(BIN)/hansa compare digits-fedavg digits-fed3r digits-fed3r-fedavg --report report.html

test: $(VENV)/all  ## All fast tests
	$(BIN)/pytest -n 2

lint: $(VENV)/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/all
	$(BIN)/mypy

check: lint types test  ## Exactly what CI runs

bench: $(VENV)/all  ## Speed as ratios within one run: the loops, the statistics, and PyPI peers in environments of their own
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/families.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/grouping.py
	$(BIN)/python benchmarks/ridge_scale.py
	$(BIN)/python benchmarks/million_clients.py
	$(BIN)/python benchmarks/compare_peers.py

mutants: $(VENV)/all  ## Mistakes put into the package one at a time, which the tests must notice; some minutes
	$(BIN)/python tests/mutants.py

results-fed3r: $(VENV)/all  ## docs/results/fed3r.md from real data; finished runs are found, not repeated
	$(BIN)/python experiments/fed3r.py

results-personalisation: $(VENV)/all  ## docs/results/personalisation.md from real data; HANSA_WORKERS runs so many at a time
	$(BIN)/python experiments/personalisation.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
