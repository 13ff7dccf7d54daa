# Everything a contributor types. Each target sets up what it needs: .venv from the package index, and, where a Docker
# daemon answers, the image that the tasks are built from. Run as root, they install packages that cannot be done without.
#
#   make demo       score the quickstart tasks on the embedded stack
#   make test       the suite; one of its lanes: test-unit, test-engine, test-provider, test-system, test-crash
#   make test-all   the suite with all variants, the mutants, and the demo on machines where nothing is installed
#   make fresh-machine  the demo and the suite on such machines, half an hour and more
#   make test-peers what foreign packages make of the same tasks: each runs in an environment of its own
#   make test-times the suite, and where its time goes (TESTS=tests/unit: of a part)
#   make soak NAME=outage_mixture  one of those that take longer still
#   make lint       ruff: rules and format          make types   mypy, strict
#   make clean      remove .venv, caches and build output
#
# PYTHON=... chooses the interpreter that .venv is made with; it is looked for otherwise.

.DEFAULT_GOAL := help
.PHONY: test-unit test-engine test-provider test-system test-crash
.PHONY: help demo test test-all test-peers fresh-machine test-times soak lint types clean sandboxes testable

# Each of the thousands of Python programs that a run starts would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

NEWEST_PYTHON = $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$name"; break; }; done)
PYTHON ?= $(or $(NEWEST_PYTHON),python3)
READY = .venv/.ready
LINTED = benchflow tests tools tools/fresh-machine tools/peers $(wildcard benchmarks/perf)

help:
	@sed -n '4,13s/^# *//p' Makefile

$(READY): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
		echo "There is no $(PYTHON). Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "BenchFlow needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V)." \
			"Install a newer one, or name it: make PYTHON=/path/to/python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { [ "$$(id -u)" -eq 0 ] && tools/need python3-venv; } || { \
		echo "$(PYTHON) can't make virtual environments. On Debian and Ubuntu, as root: apt-get install python3-venv"; exit 1; }
	@.venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || "$(PYTHON)" -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Where a Docker daemon answers, the image that tasks are built from; for root, what networks of local sandboxes need.
sandboxes: $(READY)
	@! .venv/bin/python tools/engine.py ping 2>/dev/null || tools/base-image
	@[ "$$(id -u)" -ne 0 ] || tools/need iptables=iptables || true

# What tests of local sandboxes, which only root can run, use of a machine.
PROGRAMS = nft=nftables ip=iproute2 ps=procps mkfs.btrfs=btrfs-progs mkfs.xfs=xfsprogs mkfs.ext4=e2fsprogs

testable: sandboxes
	@[ "$$(id -u)" -ne 0 ] || tools/need $(PROGRAMS) || true

demo: sandboxes
	.venv/bin/python -m benchflow.cli submit benchmarks/quickstart --agent oracle

# Four processes on two cores: while some wait for sandboxes, the others compute.
PYTEST = .venv/bin/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
PROCESSES ?= 4

test: testable
	$(PYTEST)

test-unit test-engine test-provider test-system test-crash: test-%: testable
	$(PYTEST) tests/$*

test-all: testable
	$(PYTEST) -m 'not soak and not peers'
	.venv/bin/python tools/mutants
	tools/fresh-machine --command 'make demo'

# At most twenty minutes. With `long` they draw many more tasks: PEERS=peers.
PEERS ?= peers and not long
test-peers: testable
	.venv/bin/python -m pytest -m '$(PEERS)' tests/peers

fresh-machine:
	tools/fresh-machine

soak: testable
	.venv/bin/python -m pytest -m soak -k '$(NAME)'

test-times: testable
	.venv/bin/python tools/test_times.py -- $(PYTEST) $(TESTS)

lint: $(READY)
	.venv/bin/python -m ruff check --no-cache $(LINTED)
	.venv/bin/python -m ruff format --check $(LINTED)

types: $(READY)
	.venv/bin/python -m mypy

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist benchflow.egg-info
	find benchflow tests tools benchmarks -name __pycache__ -type d -exec rm -rf {} +
