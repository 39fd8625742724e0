# What a newcomer needs is Python 3.11 or newer (with venv and pip) and make; everything else is made here.
#
#   make test    lint, and every test              make demo     lose a rank and a node, and finish all the same
#   make fuzz    bytes that find their own way into the decoder, for FUZZ_S seconds
#   make lint    ruff and mypy --strict            make bench    side by side with torchrun → docs/benchmarks.md
#   make example-etcd    two agents and a real etcd, as in examples/multi_container
#   make sim     10,000 simulated jobs with faults, every rule checked, on all CPUs
#   make nvrx    NVRx beside us, for the tests and benchmarks that compare with it
#   make clean   remove what these made

PYTHON ?= python3
VENV   ?= .venv
# PyTorch is what the tests, the demo and the benchmarks run Holdfast against; Holdfast itself never imports it.
TORCH  ?= torch==2.13.0
# NVRx is what holdfast.fault_tolerance is compared with. Without what it names as its needs: they would pull in another PyTorch.
NVRX   ?= nvidia-resiliency-ext==0.4.1 defusedxml nvidia-ml-py psutil packaging
ARGS   ?=
FUZZ_S ?= 60

BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check --quiet

.NOTPARALLEL:
.PHONY: test lint sim demo example-etcd bench fuzz clean torch nvrx frameworks system
.DEFAULT_GOAL = test

test: lint torch nvrx frameworks system
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m mypy --no-error-summary

sim: $(VENV)/.core
	@$(BIN)/holdfast simulate $(or $(ARGS),--seeds 0:10000)

demo: $(VENV)/.core torch
	@$(BIN)/python examples/demo.py $(ARGS)

example-etcd: $(VENV)/.dev torch
	@$(BIN)/python examples/multi_container/without_docker.py

bench: $(VENV)/.core torch nvrx
	@$(BIN)/python -m compileall -q src  # as pip does for a user; an editable install leaves it out
	@$(BIN)/python benchmarks/run.py $(ARGS)

# atheris is there for Linux and some Pythons only: where it cannot be had, the script says so and ends well.
fuzz: $(VENV)/.core
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(PIP) install --editable ".[fuzz]" || echo "atheris is not in reach"
	@$(BIN)/python tests/security/fuzz_decoder.py $(FUZZ_S)

clean:
	rm -rf $(VENV) build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are files inside the environment: they go when it goes, and are remade when pyproject.toml is newer.

$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
	    || { echo "$(PYTHON) is older than 3.11: name a newer one, as in make PYTHON=python3.12"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(PIP) install --editable ".[dev]"
	@touch $@

# Without PyTorch in reach the rest still works: its tests are skipped and say so. No stamp then, so that the next run tries again.
torch: $(VENV)/.core
	@test -e $(VENV)/.torch || { echo "installing $(TORCH)"; $(PIP) install $(TORCH) && touch $(VENV)/.torch; } \
	    || echo "PyTorch is not in reach: going on without it"

nvrx: torch
	@test -e $(VENV)/.nvrx || { echo "installing NVRx"; $(PIP) install --no-deps $(NVRX) && touch $(VENV)/.nvrx; } 2>/dev/null \
	    || echo "NVRx is not in reach: its side of the comparison is skipped"

# The trainers that we have callbacks for. They would bring PyTorch if it is not there, and any version of it, so only after it.
frameworks: torch
	@test -e $(VENV)/.frameworks || test ! -e $(VENV)/.torch || { echo "installing Lightning and Transformers"; \
	    $(PIP) install --editable ".[lightning,transformers]" && touch $(VENV)/.frameworks; } \
	    || echo "Lightning and Transformers are not in reach: their tests are skipped"

# What only tests use of the system: hosts played by network namespaces, an etcd and a Slurm of their own. As root on Debian it is
# installed where it is missing, and no daemon of it is started; elsewhere those tests are skipped and say why.
system:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for need in ip:iproute2 nft:nftables etcd:etcd-server srun:slurm-wlm munged:munge numactl:numactl; do \
	    command -v "$${need%:*}" >/dev/null || missing="$$missing $${need#*:}"; \
	done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
	    && apt-get -qq update && apt-get -qq install --no-install-recommends $$missing; } >/dev/null 2>&1 \
	    || echo "cannot be installed here:$$missing; tests that need them are skipped"
