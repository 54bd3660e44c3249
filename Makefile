# SPDX-License-Identifier: Apache-2.0
#   make demo     two programs that do not fit together share one GPU
#   make test     every test that this machine allows but the long ones, with a list of the rest
#   make test-quick     half a minute on two cores, while you edit: some tests of each room
#   make test-long      the long ones: random, stress and fuzzing, under sanitizers too
#   make test-drivers   the library's with each older driver simulated; NVSHARE_SIM_DRIVER=550 is one
#   make test-pythons   the unit level with each Python from 3.11 to 3.14 that there is
#   make test-LEVEL     unit, hook, bus, integration, system, kubernetes or gpu alone
#                       JOBS=1: one test at a time, else four
#   make bench          all benchmarks that this machine allows, with a list of the rest: an hour on two
#                       cards; KINDS="rl peers" runs those alone. PyTorch is taken from .venv
#   make figures        docs/performance.md and its charts, from bench/results/
#   make bench-gate     cost of the gate for a launch
#   make bench-training cost of the library for a training (needs a GPU and PyTorch)
#   make bench-daemon   cost of the daemon: decisions, memory, wake-ups; how fast nvsharectl is
#   make bench-attacked delay of others while a user attacks the daemon (as root)
#   make bench-handover bytes and time of a hand-over, delay of others (a GPU, or simulated);
#                       VARIANTS="two-large ..." measures those alone
#   make bench-shares   each program's share of a card, next to its due share
#   make bench-models   how long requests to many models on a card take, and where the time goes
#   make bench-rl       time of a hand-over between a trainer and a rollout engine
#   make bench-moving   time to park, wake and move PyTorch programs, at random and by
#                       balance = on, too (a GPU; two to move)
#   make bench-saving   time to save and restore programs by CRIU, at random and with
#                       kills, too (as root, with CRIU; a GPU, or simulated)
#   make bench-tiers    how fast swapped memory moves on to a disk and comes back, beside a plain loop
#   make bench-peers    the same programs under nvshared and under other projects (NVSHARE_PEERS)
#   make bench-preload  cost of the library for the start of a program without CUDA
#   make bench-colocation  programs that share a card, and the time of each alone
#   make simulate       a day of 1,000 tenants under a policy, in virtual time:
#                       OPTIONS="--policy FILE --svg FILE"; --help has all
#   make soak           hand-overs every 100 ms for an hour (MINUTES=60; 10 on a card): no byte wrong,
#                       and nothing grows; KILLS=1000: programs and the daemon are killed meanwhile
#   make screenshot     docs/images/*.svg, drawn anew by programs that share a GPU
#   make build, install, dist, clean
#   make deb, rpm       packages for distributions, see packaging/README.md
#   make release        all of these, checksums and a bill of materials: built twice and compared
#   make image          images for Kubernetes, see docs/kubernetes.md
# demo and test install missing packages: Debian's (as root, or with sudo)
# and a Python environment in .venv.

PYTHON ?= python3
PREFIX ?= /usr/local
VENV := .venv
# The scripts of an environment name its folder, so in a folder that was moved it is made anew. This
# is done here, as make looks for the files of rules before it runs their order-only prerequisites.
$(shell [ ! -e $(VENV)/bin/activate ] || \
	grep -q "VIRTUAL_ENV=[\"']\{0,1\}$(CURDIR)/$(VENV)" $(VENV)/bin/activate || rm -rf $(VENV))
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
# As a plain path: with a finder in its place every Python program takes three times as long to start.
EDITABLE := --use-pep517 --config-settings editable_mode=compat --editable
PYTHONS := python3.11 python3.12 python3.13 python3.14
LEVELS := unit hook bus integration system kubernetes gpu
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' nvshared/__init__.py)
COMMIT := $(shell git rev-parse --short=8 HEAD 2>/dev/null || echo $(VERSION))

# Each test starts Python programs: without their bytecode kept, compiling takes a third of the time.
unexport PYTHONDONTWRITEBYTECODE

# Tests at a time: four keep two cores busy, as many of them wait. A card, and a container of the
# system level, are for one.
JOBS ?= 4
PYTEST = $(VENV)/bin/python -m pytest
AT_ONCE = -n $(JOBS) --dist=loadscope

# What of the unit level takes seconds: random worlds, shares over long times, whole trees.
SLOW := $(addprefix tests/unit/test_,scheduler_%.py gangs.py history_file.py scrapes.py packaging.py \
	style.py manifests.py kubelet_tls.py slurm_terms.py)
QUICK := $(filter-out $(SLOW),$(wildcard tests/unit/test_*.py)) \
	$(wildcard $(addprefix tests/unit/test_scheduler_,turns.py busy.py failure.py)) \
	$(addprefix tests/bus/test_,calls.py clients.py) \
	$(addprefix tests/integration/test_,random_handovers.py) \
	$(wildcard $(addprefix libhook/tests/,test_rooms.py hook/test_interposition_list.py pace))

.PHONY: bench figures demo test test-quick test-long test-pythons test-drivers $(addprefix test-,$(LEVELS)) bench-gate bench-training bench-daemon bench-attacked bench-handover bench-shares bench-models bench-rl bench-moving bench-saving bench-tiers bench-peers bench-preload bench-colocation simulate soak screenshot ready compiled build install dist clean needs environment

demo: build $(VENV)/demo-ready
	@$(VENV)/bin/nvsharectl demo

test: ready
	$(PYTEST) $(AT_ONCE)

test-quick: ready
	$(PYTEST) -n 2 --dist=loadscope $(QUICK)

# The sanitizers' builds come first: two tests that make the same one would disturb each other.
test-long: ready
	@$(MAKE) -C libhook -s -j2 fuzz-random
	@for tool in thread address locks; do \
		$(MAKE) -C libhook -s -j2 SANITIZE=$$tool all || exit 1; \
	done
	$(PYTEST) $(AT_ONCE) -m long

# The unit level with each Python that nvshared is for, and that this machine has. pyenv's own
# commands run only the version that is chosen, so its interpreters are looked for beside them.
test-pythons: compiled
	@PATH="$$(echo "$$HOME"/.pyenv/versions/3.*/bin | tr ' ' ':'):$$PATH"; for python in $(PYTHONS); do \
		command -v $$python >/dev/null && $$python -c 'import ensurepip' 2>/dev/null || { \
			echo "skipped: there is no $$python on this machine, or it has no ensurepip"; continue; }; \
		echo "with $$python"; \
		venv=build/venv-$$python; \
		[ -x $$venv/bin/pytest ] || { $$python -m venv --clear $$venv && \
			$$venv/bin/python -m pip --quiet --disable-pip-version-check install \
				$(EDITABLE) '.[test,kubernetes]'; } || exit 1; \
		$$venv/bin/python -m pytest -n $(JOBS) --dist=loadscope tests/unit || exit 1; \
	done

test-drivers: ready
	@for driver in 535 550 570; do \
		echo "as driver $$driver"; NVSHARE_SIM_DRIVER=$$driver $(PYTEST) $(AT_ONCE) tests/integration || exit 1; \
	done

$(addprefix test-,$(LEVELS)): test-%: ready
	$(PYTEST) $(if $(filter gpu system kubernetes,$*),,$(AT_ONCE)) \
		$(if $(filter hook,$*),libhook/tests,--require=$* tests/$*)
	$(if $(filter system,$*),$(PYTEST) -m long tests/integration/test_saving_containers.py)

bench: build $(VENV)/demo-ready
	@for part in gate colocation handover models rl shares; do $(MAKE) -s -C bench/$$part || exit 1; done
	@$(MAKE) -C libhook -s stress
	@$(VENV)/bin/python -m bench.everything $(KINDS)

figures: $(VENV)/figures-ready
	@$(VENV)/bin/python -m bench.figures

bench-gate: build $(VENV)/demo-ready
	@$(MAKE) -C bench/gate -s
	@$(VENV)/bin/python -m bench.gate.measure

bench-daemon: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.daemon.measure

bench-attacked: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.daemon.attacked $(OPTIONS)

bench-handover: build $(VENV)/demo-ready
	@$(MAKE) -C bench/handover -s
	@$(VENV)/bin/python -m bench.handover.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

bench-shares: build $(VENV)/demo-ready
	@$(MAKE) -C bench/shares -s
	@$(VENV)/bin/python -m bench.shares.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

bench-models: build $(VENV)/demo-ready
	@$(MAKE) -C bench/models -s
	@$(VENV)/bin/python -m bench.models.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

bench-moving: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.moving.measure $(OPTIONS)
	@for part in charged idle random balance; do \
		$(VENV)/bin/python -m bench.moving.together $$part || exit 1; done

bench-saving: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.saving.measure $(OPTIONS)

bench-tiers: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.tiers.measure $(OPTIONS)

bench-rl: build $(VENV)/demo-ready
	@$(MAKE) -C bench/handover -s
	@$(MAKE) -C bench/rl -s
	@$(VENV)/bin/python -m bench.rl.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

bench-peers: build $(VENV)/demo-ready
	@$(MAKE) -C bench/shares -s
	@$(VENV)/bin/python -m bench.peers.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

soak: build $(VENV)/demo-ready
	@$(MAKE) -C libhook -s stress
	@$(VENV)/bin/python -m bench.soak.measure $(addprefix --minutes ,$(MINUTES)) $(addprefix --kills ,$(KILLS))

simulate: $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.simulate.measure $(OPTIONS)

bench-preload: build $(VENV)/demo-ready
	@$(VENV)/bin/python -m bench.preload.measure

bench-colocation: build $(VENV)/demo-ready
	@$(MAKE) -C bench/colocation -s
	@$(VENV)/bin/python -m bench.colocation.measure $(addprefix --variant ,$(VARIANTS)) $(OPTIONS)

screenshot: build $(VENV)/demo-ready
	@$(VENV)/bin/python docs/screenshot.py

# PyTorch is not installed by us: PYTHON is one that has it.
bench-training: build
	@$(PYTHON) -m bench.training

# What tests need is compiled while the Python packages are installed, and not by several of them
# at once.
ready: needs
	@$(MAKE) -s -j3 $(VENV)/test-ready compiled

compiled:
	@$(MAKE) -C libhook -q all 2>/dev/null || echo "Compiling libhook"
	@$(MAKE) -C libhook -s all
	@for part in colocation handover models rl shares; do $(MAKE) -s -C bench/$$part || exit 1; done

build: needs
	@$(MAKE) -C libhook -q hook simulator workload 2>/dev/null || echo "Compiling libhook"
	@$(MAKE) -C libhook -s -j2 hook simulator workload

# Everything under one folder of its own, with links to what people call. Modules that were
# removed since an earlier build must not come along, hence the rm, here and in dist.
install: needs
	$(PYTHON) -m venv --clear $(PREFIX)/lib/nvshared
	rm -rf build/lib build/lib.* build/bdist.*
	$(PREFIX)/lib/nvshared/bin/python -m pip --quiet install --use-pep517 .
	install -d $(PREFIX)/bin
	ln -sf ../lib/nvshared/bin/nvshared ../lib/nvshared/bin/nvsharectl $(PREFIX)/bin/
	ln -sf $$($(PREFIX)/lib/nvshared/bin/python -I -c 'from nvshared import library; print(library.hook())') $(PREFIX)/lib/

dist: build $(VENV)/demo-ready
	rm -rf build/lib build/lib.* build/bdist.* build/nvshare-$(COMMIT) && mkdir -p build/nvshare-$(COMMIT) dist
	$(PIP) wheel --no-deps --wheel-dir build/nvshare-$(COMMIT) .
	cp libhook/build/libnvshare.so libhook/build/nvshare-workload README.md CHANGELOG.md LICENSE \
		build/nvshare-$(COMMIT)/
	tar -C build -czf dist/nvshare-$(COMMIT).tar.gz nvshare-$(COMMIT)
	@echo dist/nvshare-$(COMMIT).tar.gz

clean:
	$(MAKE) -C libhook clean
	rm -rf build dist $(VENV) nvshared.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# What must be on the machine. Asks apt only for what is missing.
needs:
	@case "$(CURDIR)" in *[\ :]*) \
		echo "'$(CURDIR)' has a blank or a colon, and LD_PRELOAD separates libraries by both: move this folder" >&2; \
		exit 1;; \
	esac; \
	missing=; \
	echo '#include <stdlib.h>' | $(CC) -E - >/dev/null 2>&1 || missing="$$missing gcc libc6-dev"; \
	command -v $(PYTHON) >/dev/null || missing="$$missing python3"; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
	command -v dbus-daemon >/dev/null || missing="$$missing dbus-daemon"; \
	[ -z "$$missing" ] && exit 0; \
	if [ $$(id -u) = 0 ]; then as_root=; else as_root=sudo; fi; \
	if ! command -v apt-get >/dev/null || { [ -n "$$as_root" ] && ! sudo -v; }; then \
		echo "Missing:$$missing. Install them with the system's package manager, or run make as root." >&2; \
		exit 1; \
	fi; \
	echo "Installing$$missing"; \
	$$as_root apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive $$as_root apt-get -qq install -y --no-install-recommends $$missing >/dev/null

environment: needs
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$$($(PYTHON) --version) is too old: nvshared needs Python 3.11 or newer. Name one: make PYTHON=/path/to/python3.11 ..." >&2; \
		exit 1; }
	@$(VENV)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)

$(VENV)/demo-ready: pyproject.toml setup.py | environment
	@echo "Installing the Python packages into $(VENV)"
	@$(PIP) install $(EDITABLE) .
	@touch $@

$(VENV)/figures-ready: pyproject.toml | $(VENV)/demo-ready
	@$(PIP) install $(EDITABLE) '.[figures]'
	@touch $@

# Looking for the tests once keeps their bytecode, which several processes would else each make.
$(VENV)/test-ready: pyproject.toml setup.py | environment
	@echo "Installing the Python packages for the tests into $(VENV)"
	@$(PIP) install $(EDITABLE) '.[test,kubernetes]'
	@$(PYTEST) --collect-only --quiet >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }
	@touch $@ $(VENV)/demo-ready

include packaging/packaging.mk
include tests/system/system.mk
