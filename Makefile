# Needs Python >= 3.10 and make only. Every target installs what it uses, into this directory and the user's cache.
#   make demo                    see it work
#   make test PYTHON=python3.12  with another interpreter

PYTHON ?= python3
UV_VERSION := 0.13.8
UV := .uv/bin/uv
BIN := .venv/bin
ARGS ?=
# pytest processes. Each has its own broker and Spark session, and mostly waits.
WORKERS ?= 4
TRIALS ?= 10
MINUTES ?= 10
SEED ?=
HISTORIES ?= 20000

# uv must not find or download another interpreter than PYTHON, and must trust the machine's certificates: its own list does
# not have those of a company's proxy.
export UV_PYTHON_DOWNLOADS := never
export UV_SYSTEM_CERTS := 1
export UV_PROJECT_ENVIRONMENT := .venv
ifeq ($(CI),true)
export UV_NO_PROGRESS := 1
endif
# An activated environment would otherwise be used instead of .venv.
unexport VIRTUAL_ENV

# $(call retry,COMMAND): up to four attempts, because networks fail now and then.
retry = attempt=1; until $(1); do \
	  if [ $$attempt -ge 4 ]; then echo "make: gave up after $$attempt attempts" >&2; exit 1; fi; \
	  echo "make: attempt $$attempt failed, trying again in $$((attempt * 2)) s" >&2; \
	  sleep $$((attempt * 2)); attempt=$$((attempt + 1)); done

# $(call tests,TIER,WORKERS): the tier's tests, and after them those that need a calm machine. ARGS may leave one part empty.
tests = $(BIN)/pytest -m "$(1) and not calm" --numprocesses $(2) --dist worksteal $(ARGS); busy=$$?; \
	  $(BIN)/pytest -m "$(1) and calm" --numprocesses 2 --dist worksteal $(ARGS); calm=$$?; \
	  case $$busy-$$calm in 0-0|0-5|5-0) ;; *) exit 1 ;; esac

.DEFAULT_GOAL := help
.PHONY: help setup demo rehearse-migration bench lint quick test whole matrix docs chaos users planted

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1	\2/p' Makefile

setup: .venv/.synced  ## make .venv with the locked versions

demo: setup  ## kill a query on a real Kafka again and again, then count; ARGS="--help" for its options
	@$(BIN)/twopc demo $(ARGS)

rehearse-migration: setup  ## from a real Kafka 0.10 to transactional sinks and back, killed on the way, then count; ARGS="--help"
	@$(BIN)/twopc migrate rehearse $(ARGS)

bench: setup  ## compare the speed with other sinks and bare clients, in turn; ARGS="--only streaming --rounds 5", ARGS="--help"
	@$(BIN)/python -m benchmarks $(ARGS)

lint: setup  ## static checks only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: lint  ## static checks, and the tests that start no server: for the inner loop
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal --ignore tests/live --ignore tests/chaos --ignore tests/nemesis \
	  --ignore tests/users --ignore tests/contract --ignore tests/test_matrix.py $(ARGS)

test: lint  ## static checks, then all tests; ARGS="-k kafka" to choose
	$(call tests,not whole,$(WORKERS))

whole: setup  ## the tests that take minutes: every step and plan, several brokers and executors, memory, the baseline
	$(call tests,whole,2)

matrix: setup  ## the Kafka sink, kills under Spark included, on every Spark, Python and Kafka; ARGS="--spark 3.5", "--kafka 3.9", "--connect"
	$(BIN)/python -m tests.matrix $(ARGS)

docs: setup  ## the documentation as a site, in site/; broken links and other warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

chaos: setup  ## random histories of the model, then kills at every step on a real Kafka; TRIALS=300 HISTORIES=100000
	$(BIN)/python -m tests.model --histories $(HISTORIES)
	$(BIN)/python -m tests.chaos --trials $(TRIALS)

users: setup  ## random programs around foreachBatch, each against a plain reference, killed now and then; MINUTES=60 SEED=4711
	$(BIN)/python -m tests.users --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

planted: setup  ## plant every bug of tests/planted in a copy, and see which tests catch it; ARGS="--only sweep"
	$(BIN)/python -m tests.planted $(ARGS)

.venv/.synced: pyproject.toml uv.lock $(UV)
	@echo "make: installing the locked packages into .venv ($$($(PYTHON) --version))"
	@$(call retry,$(UV) sync --locked --all-extras --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')")
	@touch $@

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "make: Python 3.10 or newer is needed, '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not installed)." \
	       "Choose another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "make: installing uv $(UV_VERSION) into .uv"
	@rm -rf .uv
	@$(PYTHON) -m venv .uv || { rm -rf .uv; \
	  echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(call retry,.uv/bin/python -m pip --disable-pip-version-check --quiet install uv==$(UV_VERSION)) || { \
	  rm -rf .uv; exit 1; }
