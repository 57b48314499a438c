# Every target sets up what it needs in .venv; `make help` lists them.
PYTHON ?= python3
SEEDS ?= 100000
SEED ?=
PROCESSES ?= 10000
CRASHES ?= 2000
ANNOUNCED ?= 200
FRAMES ?= 1000000
STOPS ?= 1000

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
BENCH_READY := $(VENV)/.ready-bench
SERVE_READY := $(if $(wildcard $(READY)),$(READY),$(VENV)/.ready-serve)
FOREIGN := build/foreign/.ready

export PIP_DISABLE_PIP_VERSION_CHECK = 1
.DELETE_ON_ERROR:
.PHONY: help setup tools run test collected quick check prove bench races endings pictures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## install the package and its development tools into .venv

run: $(SERVE_READY) ## serve the demo agent, which needs no model and no key; send to it and stop it from another terminal
	@exec $(BIN)/interlock serve

# The tests wait about as long as they work, so there are more of them at a time than cores. tests/conftest.py
# says which of them stay together, and which begin first.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? 2 * n : n + 2)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Where the tests' own directories are: in memory if there is room in it and programs may be run from it, since a commit
# that waits for somebody else's fsync is late. Others may enter, because some tests become other users.
ROOM := room=$$(mktemp -d /dev/shm/il.XXXX 2>/dev/null) && cp /bin/true $$room && $$room/true && \
	[ "$$(df -kP $$room | awk 'END { print $$4 }')" -gt 2000000 ] || { rm -rf "$$room"; room=$$(mktemp -d /tmp/il.XXXX); }; \
	chmod 755 $$room

test quick: export PYTHONDONTWRITEBYTECODE = # the tests start Python some thousand times: what is compiled is kept
test: ## everything CI runs: the checks, then all the tests
	@$(MAKE) --no-print-directory -j3 check tools collected
	@$(ROOM); PYTEST_DEBUG_TEMPROOT=$$room $(PYTEST); status=$$?; rm -rf $$room; exit $$status

# The workers would each compile every test for themselves.
collected: $(READY)
	@mkdir -p build; $(BIN)/python -m pytest --collect-only -qq >build/collected.log || { cat build/collected.log; exit 1; }

QUICK := tests/core tests/runtime tests/test_repository.py tests/test_races.py tests/test_pages.py tests/test_endings.py
quick: check ## what to run while working, in a minute: the checks, the rules, the runtime, and 2,000 schedules
	@$(ROOM); PYTEST_DEBUG_TEMPROOT=$$room $(PYTEST) $(QUICK); status=$$?; rm -rf $$room; exit $$status
	@$(BIN)/python -m proofs.schedules --seeds 2000

check: $(READY) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

prove: $(READY) tools ## search the model, explore SEEDS=100000 (SEED=n replays), cut PROCESSES=10000, read FRAMES=1000000, race STOPS=1000 of hosts, kill ANNOUNCED=200 and CRASHES=2000
	@$(if $(SEED),true,$(BIN)/python -m proofs.model)
	@$(BIN)/python -m proofs.schedules $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	@$(if $(SEED),true,$(BIN)/python -m proofs.schedules --processes $(PROCESSES))
	@$(if $(SEED),true,$(BIN)/python -m proofs frames --inputs $(FRAMES))
	@$(if $(SEED),true,$(BIN)/python -m proofs disk --bare --control)
	@$(if $(SEED),true,$(BIN)/python -m proofs stops --stops $(STOPS))
	@$(if $(SEED),true,INTERLOCK_ALL_SUITES=1 $(BIN)/python -m pytest tests/hosts/test_suites.py tests/hosts/test_link.py)
	@$(if $(SEED),true,$(BIN)/python -m proofs announcements --kills $(ANNOUNCED))
	@$(if $(SEED),true,$(BIN)/python -m proofs crashes --kills $(CRASHES))

bench: $(BENCH_READY) ## print every figure that the docs quote of Interlock
	@$(BIN)/python -m bench

races: $(READY) ## list the rows of tests/races.md that have no test yet
	@$(BIN)/python tests/races.py

endings: $(READY) ## draw docs/endings.md from the projection table, and say what the changelog owes
	@$(BIN)/python tests/endings.py

pictures: $(READY) ## draw the path and the rooms of docs/design.md from the code
	@$(BIN)/python tests/pictures.py

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +

# The model is searched by spin; disks and clocks are made to fail by strace and libfaketime; the page is read by
# Chromium: Debian packages, all of them. Whoever is not root is told by the tests what to install.
tools: $(FOREIGN)
	@{ command -v spin && command -v strace && command -v faketime && echo '#include <stdio.h>' | gcc -E -xc -; } \
		>/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || { \
		echo "installing spin, gcc, strace and faketime"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install -y --no-install-recommends spin gcc libc6-dev strace faketime >/dev/null; }
	@command -v chromium-headless-shell >/dev/null || [ "$$(id -u)" != 0 ] || { \
		echo "installing chromium-headless-shell"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null; }

# Somebody else's client and the node it asks for, and axe-core, which judges the page: exactly as pinned. Nothing that
# a package brings is run on the way.
$(FOREIGN): tests/foreign/package.json tests/foreign/package-lock.json
	@command -v npm >/dev/null || [ "$$(id -u)" != 0 ] || { \
		echo "installing npm"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install -y --no-install-recommends npm >/dev/null; }
	@! command -v npm >/dev/null || { echo "installing npm's packages into $(@D)"; mkdir -p $(@D) && cp $^ $(@D) && \
		npm ci --prefix $(@D) --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null && touch $@; }

# Debian splits venv off into a package of its own. Without it, virtualenv from PyPI does the same, kept in build/.
$(BIN)/pip:
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m pip install -qq --target build/virtualenv --upgrade virtualenv && \
		PYTHONPATH=build/virtualenv $(PYTHON) -m virtualenv --quiet --clear $(VENV); }

$(READY): pyproject.toml | $(BIN)/pip
	@echo "setting up $(VENV)"
	@$(BIN)/pip install -qq --editable '.[dev]'
	@touch $@

# What `make run` needs, for a first look: a third of it.
$(VENV)/.ready-serve: pyproject.toml | $(BIN)/pip
	@echo "setting up $(VENV): interlock and its server (once; half a minute or so)"
	@$(BIN)/pip install -qq --editable '.[serve]'
	@touch $@

$(BENCH_READY): $(READY)
	@$(BIN)/pip install -qq --editable '.[dev,bench]'
	@touch $@
