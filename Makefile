# What a person does with a checkout. `./run TARGET` does the same on a machine that lacks Python, Java or make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

# Hundreds of processes start in the tests and in a service: none shall compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup docs demo checked test test-fast test-quick test-all console-test package-test backup-test faults simulation fuzz client lint format bench experiments clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv from the pinned constraints; compile and archive once what every start needs

$(INSTALLED): pyproject.toml lab/pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools wheel
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable '.[dev]' --editable lab
	@touch $@

$(READY): $(INSTALLED) src/fieldfare/runtimes/spark/class_archive.py
	@echo "Compiling what every start needs (minutes the first time)"
	@$(BIN)/python -m fieldfare.runtimes.spark.class_archive
	@touch $@

demo: setup  ## the main job: 100,000 filters, 336,776 real events, matched and checked
	@$(if $(filter kafka,$(DEMO_OPTIONS)),$(BIN)/python -m fieldfare_lab.kafka_broker )$(if $(filter \
		spark://,$(DEMO_OPTIONS)),$(BIN)/python -m fieldfare_lab.spark_cluster )$(BIN)/fieldfare demo $(DEMO_OPTIONS)

docs: setup  ## the pages of docs/ as a site: site/; the tables of settings are made from their model
	@$(BIN)/python tools/settings_page.py
	@NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --quiet --strict

lint: $(INSTALLED)  ## ruff, mypy, and whether the two clients are one
	@$(BIN)/python tools/synchronous_client.py --check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

client: setup  ## write the client for ordinary programs from the one for asyncio
	@$(BIN)/python tools/synchronous_client.py

format: setup  ## let ruff rewrite what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Each takes one core: the one compiles what the tests need while the other looks for mistakes.
checked:
	@$(MAKE) --no-print-directory --jobs 2 lint setup

test: checked  ## lint, types, and every test but the slow ones, in a small dose
	@DOSE=0.3 $(BIN)/python -m pytest -m "not slow" --numprocesses 4

test-fast: setup  ## the inner loop: no Spark, no service, nothing that takes long
	@DOSE=0.05 $(BIN)/python -m pytest -m "not slow and not long and not spark and not service" --numprocesses 2

# The tests that a change most often breaks, among those that take long: a real gateway, its storage, a client.
QUICK := tests/storage tests/client/test_client_with_gateway.py tests/cli/test_cli_delivery.py \
	$(addprefix tests/gateway/,routes publishing delivery subscriptions maintenance)

test-quick: test-fast  ## before a commit: the inner loop, then gateway, storage and client in a small dose (about 4 minutes)
	@DOSE=0.05 $(BIN)/python -m pytest -m "long and not slow and not spark and not service" --numprocesses 2 $(QUICK)

test-all: checked  ## everything: the slow ones, and all examples
	@$(BIN)/python -m pytest --numprocesses 2

console-test: setup  ## the web console in a real browser (apt-get install chromium); SHOTS=FOLDER writes a picture of each page
	@SHOTS=$(SHOTS) $(BIN)/python -m pytest tests/console

package-test: setup  ## sdist and wheel, installed in an empty environment and run (minutes: the registry, and all kernels compiled)
	@$(BIN)/python -m pytest tests/packaging

backup-test: setup  ## backup, restore and verify, also while everything is killed
	@$(BIN)/python -m pytest tests/storage/test_backup.py tests/cli/test_cli_backup.py tests/faults/test_backup_under_kills.py

faults: setup  ## FAULTS_S seconds (600) of accidents to a service under load (FAULTS_OPTIONS=--kafka: with its logs there); needs root for disks of its own
	@$(BIN)/python -m tests.faults --seconds $(or $(FAULTS_S),600) $(FAULTS_OPTIONS)

simulation: setup  ## SEEDS seeds (1000) from FIRST (0) on of the service on a simulated machine
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)

fuzz: setup  ## a million inputs for the parsers of filters
	@$(BIN)/python -m tests.fuzz $(FUZZ_OPTIONS)

bench: setup  ## the benchmarks, one JSON object each
	@$(BIN)/python benchmarks/decoding.py --json
	@$(BIN)/python benchmarks/delivery.py --json
	@$(BIN)/python benchmarks/matching.py --workload range --subscriptions 100000 --json
	@$(BIN)/python benchmarks/end_to_end.py --json

experiments: setup  ## the papers' figures again, from simulations: experiments/*/results
	@for folder in experiments/bluedove experiments/autotuned experiments/estreamhub experiments/routing experiments/padres; do $(BIN)/python $$folder || exit 1; done
	@$(BIN)/python experiments/tables.py

clean:  ## remove what this file made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
