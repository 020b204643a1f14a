# Everything a newcomer or a developer runs. The first target that needs Python makes .venv; from
# then on a target installs something only when pyproject.toml has changed.

VENV := .venv
BIN := $(VENV)/bin
# Stamps: the venv is whole; the runtime is installed (all that `make run` needs); the extras are.
MADE := $(VENV)/.made
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
READY_PEERS := $(VENV)/.ready-peers
PIP := $(BIN)/python -m pip --disable-pip-version-check install

.PHONY: help run test soak lint fmt bench bench-peers nano proto clean
.DEFAULT_GOAL := help

help:
	@echo "make run    set up and generate text with the shipped step5-nano checkpoint"
	@echo "make test   set up and run the tests"
	@echo "make soak   serve mixed load for twenty minutes and check that nothing is wrong or lost"
	@echo "make lint   ruff, pyright and buf"
	@echo "make fmt    format the sources and repair what ruff can repair"
	@echo "make bench  measure, and write docs/results.md"
	@echo "make bench-peers  measure beside llama.cpp (built once) and transformers"
	@echo "make nano   train step5-nano again (hours; resumes after an interruption)"
	@echo "make proto  generated code of the gRPC contract"
	@echo "make clean  remove the venv, caches and build output (an unfinished training stays)"

run: $(READY)
	@$(BIN)/fourstep generate --chat docs/examples/hello.json
	@echo
	@echo "Next, for example:"
	@echo "  $(BIN)/fourstep generate --chat docs/examples/sort.json --spec-tokens 0"
	@echo "  $(BIN)/fourstep generate --prompt 'def __init__(self, name, value):' --temperature 0.5 --seed 1"
	@echo "  $(BIN)/fourstep inspect models/step5-nano"

test: $(READY_DEV)
	$(BIN)/python -m pytest -q -rs -n auto --maxprocesses 4 --dist worksteal

soak: $(READY_DEV)
	$(BIN)/python -m tests.soak

lint: $(READY_DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/released.binpb

fmt: $(READY_DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY_DEV)
	$(BIN)/python -m tests.bench

bench-peers: $(READY_PEERS)
	$(BIN)/python -m tests.bench.peers

nano: $(READY_DEV)
	$(BIN)/python -m models.recipe

proto: $(READY_DEV)
	$(PIP) --editable '.[proto]'
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto \
	    --grpc_python_out=proto proto/fourstep/v1/*.proto

clean:
	rm -rf $(VENV) dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@# build/nano holds a training that may have taken hours; remove it by hand.
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name nano -exec rm -rf {} +

$(MADE):
	@for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	    $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	        >/dev/null 2>&1 || continue; \
	    echo "making $(VENV) with $$($$python --version)"; \
	    $(BIN)/python -c '' 2>/dev/null || rm -rf $(VENV); \
	    $$python -m venv $(VENV) && touch $@; \
	    exit; \
	done; \
	echo "fourstep needs Python 3.11 to 3.14 with the venv module, and none was found." >&2; \
	echo "On Debian or Ubuntu: sudo apt install python3 python3-venv" >&2; \
	exit 1

$(READY): pyproject.toml | $(MADE)
	@echo "installing torch and the other requirements (about two minutes the first time)"
	$(PIP) --editable .
	@touch $@

$(READY_DEV): $(READY)
	$(PIP) --editable '.[test,lint,nano,bench,otel,gateway]'
	@touch $@

$(READY_PEERS): $(READY_DEV)
	$(PIP) --editable '.[peers]'
	@touch $@
