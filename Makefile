# What a newcomer types: `make demo`, `make test`. Each target makes what it needs in .venv.
# Another interpreter: make PYTHON=/path/to/python3.12 demo

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --editable
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Processes of tests, each with a ZooKeeper, bookies and ports of its own. Four keep two processors busy, since tests
# wait as well as compute; 1 runs them in one, in the usual order.
WORKERS ?= 4
# Of the exhaustive ones fewer at a time: they hardly wait, and Spark gives a Python process ten seconds to start.
AT_ONCE = $(WORKERS)
test-full test-long: AT_ONCE = $(if $(filter file,$(origin WORKERS)),3,$(WORKERS))
# Of mutants more at a time: many of them make their tests wait until they hang.
MUTANTS_AT_ONCE = $(if $(filter-out 1,$(WORKERS)),$(shell expr $(WORKERS) + 2),1)
RUNS ?= 10
LOAD ?= 0
# Bytecode is kept, whatever the environment says: tests start hundreds of processes, and each would compile all modules.
test test-fast test-full test-long test-bookkeeper flakes coverage mutants: export PYTHONDONTWRITEBYTECODE :=
PYTEST = $(BIN)/python -m pytest $(if $(filter-out 1,$(AT_ONCE)),-n $(AT_ONCE))

.PHONY: help demo compiled test test-fast flakes coverage test-full test-long test-privileged test-containers test-bookkeeper test-browser test-alarms test-pythons mutants check docs docs-serve golden scenarios settings sim soak chaos shrink planted ablations bench bench-export bench-housekeeping bench-memory bench-peers bench-streaming bench-tls clean

help:
	@echo "make demo       store a year of flights on a local cluster, read them back, query and stream them with Spark"
	@echo "make test       all tests that need no privileges (some minutes; WORKERS=1: in one process)"
	@echo "make test-fast  those that need neither Java nor ZooKeeper: unit and simulation"
	@echo "make flakes     the tests many times over, and which of them fail now and then (RUNS=10 LOAD=2 ORDER=7 TESTS=tests/unit)"
	@echo "make coverage   the tests, and which lines and branches of src/bkpy none of them reaches"
	@echo "make test-full  these, the exhaustive and the privileged ones, and the mutants (an hour)"
	@echo "make test-long  what takes longer still: more seeds, kills for minutes, a part of the tests on each other Python (an hour and a half)"
	@echo "make test-privileged  the privileged ones that are short: needs root and loop devices"
	@echo "make test-browser  the dashboard in a real Chromium: needs apt-get install chromium"
	@echo "make test-alarms  the alarms by a real Prometheus: needs root, apt-get install prometheus"
	@echo "make test-containers  docker-compose.yml on a Docker daemon of their own: needs root, docker.io, docker-compose, debootstrap"
	@echo "make test-pythons  unit tests, and a part of those of a cluster, on each other Python 3.11 to 3.14 that is here or, as root with debootstrap, comes from Debian (PYTHONS='/path ...': on these)"
	@echo "make mutants    defects planted in copies of the code, each of which the tests have to notice (a quarter of an hour; MUTANTS='a name': these)"
	@echo "make check      format, lint, types, direction of imports, words and links"
	@echo "make golden     write the golden files anew (a change of them is a change of a stored format)"
	@echo "make scenarios  write the page of behaviours and the tests that hold them anew"
	@echo "make settings   write the pages of all settings and of the API anew"
	@echo "make sim SEED=7 one simulated run of bookies and client, with its trace (SCENARIO=failover: of dying writers, crowd: of many ledgers; SEEDS=200: so many seeds)"
	@echo "make soak SEEDS=1000  so many seeds on all cores, with their coverage marks (MINUTES=60: for so long; RUN=quick, FIRST=5000)"
	@echo "make chaos MINUTES=5  a real cluster under kills, suspensions, cuts and lost disks, then every entry compared (SEED=7)"
	@echo "make shrink SEED=7  what is left of a failing seed that matters, told as a story (RUN=everything-long; TO=FILE: and as a test; BUDGET=600: in so many runs)"
	@echo "make planted SEEDS=200  defects of the track record planted again: how many of so many seeds find each (DEFECT='part of a row'; FINDS=3: no more of each)"
	@echo "make ablations  rules of protocol and storage switched off one by one, and what notices (RULE=13, SEEDS=500)"
	@echo "make bench      the standard table of throughput and latency"
	@echo "make bench-export  exports to Parquet beside what the same Spark writes from a generator"
	@echo "make bench-housekeeping  appends while all of checkpoints, collection and compaction are busy, beside none of them"
	@echo "make bench-tls  appends and reads with TLS, beside the same without"
	@echo "make bench-streaming  whether a Spark stream keeps up with a log that is written beside it, for five minutes"
	@echo "make bench-memory  ten minutes of the heaviest load, and how much memory it takes, minute by minute"
	@echo "make bench-peers  the same loads on bkpy and on Apache BookKeeper, in turn (needs a JDK and Maven; QUICK=1: about twenty minutes, no failures; PEERS=kafka,nats: and on these; ONLY=same_client: Java's client on both's bookies)"
	@echo "make docs       the documentation as a site with search, in build/docs (make docs-serve: and on a local port)"
	@echo "make clean      remove everything that the others made"

demo: $(VENV)/.demo
	env -u BKPY_CONNECT $(BIN)/bkpy demo

test: $(VENV)/.dev $(VENV)/zookeeper.jsa compiled
	$(PYTEST) -m "not exhaustive and not privileged"

# Once, rather than by each of the processes of tests.
compiled: export PYTHONDONTWRITEBYTECODE :=
compiled: $(VENV)/.dev
	@$(BIN)/python -m compileall -q -j 2 -x '/(test_\w+|conftest)\.py$$' src tests

test-full: $(VENV)/.dev $(VENV)/zookeeper.jsa $(VENV)/spark.jsa compiled
	$(PYTEST) -m "not long" --durations=40
	$(BIN)/python -m tests.mutants --jobs $(MUTANTS_AT_ONCE)

test-fast: $(VENV)/.dev compiled
	$(PYTEST) tests/unit tests/sim -m "not thorough and not exhaustive and not privileged"

flakes: $(VENV)/.dev $(VENV)/zookeeper.jsa
	$(BIN)/python -m tests.flakes --runs $(RUNS) --load $(LOAD) --workers $(WORKERS) $(if $(ORDER),--seed $(ORDER)) $(TESTS)

coverage: $(VENV)/.dev
	$(PYTEST) -m "not exhaustive and not privileged" --cov=bkpy --cov-branch --cov-report=term-missing:skip-covered $(TESTS)

test-privileged: $(VENV)/.dev
	$(BIN)/python -m pytest -m "privileged and not exhaustive"

test-containers: $(VENV)/.dev
	$(BIN)/python -m pytest -m containers

test-alarms: $(VENV)/.dev
	$(BIN)/python -m pytest -m prometheus

test-bookkeeper: $(VENV)/.dev $(VENV)/zookeeper.jsa compiled
	$(PYTEST) --durations=20 tests/bookkeeper

test-browser: $(VENV)/.dev
	$(BIN)/python -m pytest -m browser

test-long: $(VENV)/.dev $(VENV)/zookeeper.jsa $(VENV)/spark.jsa compiled
	$(PYTEST) -m long --durations=20

test-pythons: $(VENV)/.dev
	$(BIN)/python -m tests.pythons $(PYTHONS)

mutants: $(VENV)/.dev $(VENV)/zookeeper.jsa compiled
	$(BIN)/python -m tests.mutants --jobs $(MUTANTS_AT_ONCE) $(if $(MUTANTS),"$(MUTANTS)")

check: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py tests/unit/test_words.py tests/unit/test_docs.py \
		tests/unit/config/test_config.py::test_the_page_of_settings_is_current

docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.dev
	$(BIN)/mkdocs build --quiet
	@echo "build/docs/index.html: with search by make docs-serve"

docs-serve: $(VENV)/.dev
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

golden: $(VENV)/.dev
	$(BIN)/python -m tests.golden.regenerate

scenarios: $(VENV)/.dev
	$(BIN)/python -m tests.scenarios --write

settings: $(VENV)/.dev
	$(BIN)/python -m tests.settings_page --write
	$(BIN)/python -m tests.blocking_calls --write
	$(BIN)/python -m tests.api_page --write

SEED ?= 0
SCENARIO ?= standard
sim: $(VENV)/.dev
	$(BIN)/python -m tests.sim $(SCENARIO) $(SEED) $(if $(SEEDS),--seeds $(SEEDS))

RUN ?= everything
shrink: $(VENV)/.dev
	$(BIN)/python -m tests.sim.everything.shrink $(SEED) --run $(RUN) $(if $(TO),--to $(TO)) $(if $(BUDGET),--budget $(BUDGET))

planted: $(VENV)/.dev
	$(BIN)/python -m tests.sim.planted $(if $(DEFECT),"$(DEFECT)") $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FINDS),--finds $(FINDS))

ablations: $(VENV)/.dev
	$(BIN)/python -m tests.sim.ablations $(if $(RULE),--rule $(RULE)) $(if $(SEEDS),--seeds $(SEEDS))

FIRST ?= 0
# A seed is drawn unless the command gives one.
chaos: $(VENV)/.dev $(VENV)/zookeeper.jsa
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),5) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED))

soak: $(VENV)/.dev
	$(BIN)/python -m tests.sim.soak $(RUN) --first $(FIRST) $(if $(MINUTES),--minutes $(MINUTES),--seeds $(or $(SEEDS),1000))

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/table.py --json docs/bench.json
	$(BIN)/python benchmarks/picture.py docs/bench.json docs/bench-peers.json --to docs/bench.svg

bench-export: $(VENV)/.demo
	$(BIN)/python benchmarks/export.py --json docs/bench-export.json

bench-housekeeping: $(VENV)/.demo
	$(BIN)/python benchmarks/housekeeping.py --json docs/bench-housekeeping.json

bench-tls: $(VENV)/.demo
	$(BIN)/python benchmarks/tls.py --json docs/bench-tls.json

bench-memory: $(VENV)/.demo
	$(BIN)/python benchmarks/memory.py --json docs/bench-memory.json

bench-streaming: $(VENV)/.demo
	$(BIN)/python benchmarks/streaming.py --json docs/bench-streaming.json

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-data spark-warehouse
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say what was installed: the demo's needs are a part of the developer's.
$(VENV)/.demo: pyproject.toml $(VENV)/.made
	@echo "Installing bkpy with PySpark and Java into $(VENV): about 1 GB, once."
	$(PIP) '.[demo]'
	@touch $@

# Java ignores one that it can't use, and where there is no Java there is none.
$(VENV)/zookeeper.jsa: $(VENV)/.dev tests/zookeeper_classes.py
	$(BIN)/python -m tests.zookeeper_classes

$(VENV)/spark.jsa: $(VENV)/.dev tests/spark_classes.py
	$(BIN)/python -m tests.spark_classes

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	@echo "Installing bkpy and its development tools into $(VENV): about 1 GB, once."
	$(PIP) '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "bkpy needs Python 3.11 or newer on the PATH (Debian: apt-get install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c '' 2>/dev/null || { echo "$(PYTHON) is not there, or is no Python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bkpy needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module (Debian: apt-get install python3-venv)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# ONLY names some of the four, in any order: run failures healing same_client.
MEASURED = $(or $(ONLY),run $(if $(QUICK),,failures healing) same_client)
bench-peers: $(VENV)/.demo
	$(if $(filter run,$(MEASURED)),$(BIN)/python benchmarks/peers/run.py $(if $(QUICK),--quick) $(if $(PEERS),--peers $(PEERS)) --json docs/bench-peers.json)
	$(if $(filter failures,$(MEASURED)),$(BIN)/python benchmarks/peers/failures.py --json docs/bench-peers.json)
	$(if $(filter healing,$(MEASURED)),$(BIN)/python benchmarks/peers/healing.py --json docs/bench-peers.json)
	$(if $(filter same_client,$(MEASURED)),$(BIN)/python benchmarks/peers/same_client.py $(if $(QUICK),--quick) --json docs/bench-peers.json)
