# What a newcomer needs is Python 3.11 or newer (with venv and pip) and make; everything else is made here.
#
#   make test           lint, and what proves every promise: six to ten minutes on two cores
#   make test-all       lint, and every test there is: half an hour and more
#   make test-changed   what the change since the last commit can break, the nearest first, for a minute
#   make demo           lose a rank and a node, and finish all the same
#   make recording      record make demo → docs/demo.svg, which README shows
#   make lint           ruff and mypy --strict
#   make coverage       make test, and how many lines of ours it runs
#   make flaky          tests again and again, every other time on a busy machine: FILE=tests/e2e/test_tee.py N=20
#   make house          how heavy is the source? Circles of imports, long functions, crowded folders
#   make docs           docs/ as a site with search, in site/
#   make wheels         Holdfast's wheels, with those of distributions/, in dist
#   make release        dist: wheels and source archives, built twice and compared; needs by hash; a bill of materials; one job
#   make reference      write the pages and drawings of docs/ that are made from the code
#   make mutations      is a wrong decision found? Twenty mutants, one after the other
#   make fuzz           bytes that find their own way into the decoder, and a member that lies; FUZZ_S seconds for each
#   make diagnosis      how well are failures diagnosed? Every score with its interval: ARGS="unseen --wrong"
#   make chaos          play every kind of fault that the record lacks → docs/reference/faults.md: KINDS= TRIES=3 SEED=1 JOBS=1
#   make in-place       a thousand failures in one job whose ranks begin again in their processes: ARGS="twice --failures 200"
#   make sim            10,000 simulated jobs with faults, every rule checked, on all CPUs
#   make bench          side by side with torchrun → docs/benchmarks.md
#   make example-etcd   two agents and a real etcd, as in examples/multi_container
#   make nvrx           NVRx beside us, for the tests and benchmarks that compare with it
#   make google         Google's resiliency supervisor in an environment of its own, for the same
#   make image          Debian's Python as the base of an image, for the test that builds deploy/Dockerfile
#   make clean          remove what these made
#
# ARGS goes to pytest, to the demo or to the benchmarks: make test ARGS="-k restart -x".

PYTHON ?= python3
VENV   ?= .venv
# PyTorch is what the tests, the demo and the benchmarks run Holdfast against; Holdfast itself never imports it. TORCH= leaves it out.
TORCH  ?= torch==2.13.0
# NVRx is what holdfast.fault_tolerance is compared with. Without what it names as its needs: they would pull in another PyTorch.
NVRX   ?= nvidia-resiliency-ext==0.4.1 defusedxml nvidia-ml-py psutil packaging
# What builds the site of the documentation.
SITE   ?= mkdocs-material==9.8.2 mkdocstrings-python==2.0.11
GOOGLE ?= google-cloud-resiliency-supervisor==1.0.5
# Google's goodput calculator, without its clients of a cloud, which are never asked.
GOODPUT ?= ml-goodput-measurement==0.2.3 numpy scipy requests urllib3 certifi idna charset-normalizer
# torchtitan, DeepSpeed and Ray, without PyTorch and what else the environment has: half a gigabyte. A few of their needs have to be that old.
TITAN  ?= torchtitan==0.3.0 spmd_types==0.2.3 torchdata torch_checkpointing "datasets<4.8" "dill<0.4.1" "multiprocess<0.70.19" \
          absl-py docstring_parser einops pandas pyarrow python-dateutil tensorboard typeguard tyro xxhash
DEEPSPEED ?= deepspeed==0.19.8 einops hjson msgpack py-cpuinfo
RAY    ?= ray==2.60.0 msgpack
ARGS   ?=
FUZZ_S ?= 60

BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check --quiet

# Most tests wait for processes: three for each core keep it busy.
AT_ONCE ?= $(shell echo $$((3 * $$(nproc))))
PARALLEL = -n $(AT_ONCE) --dist loadgroup --no-loadscope-reorder
PYTEST   = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest $(PARALLEL) --durations 10

.NOTPARALLEL:
.PHONY: wheels release test test-all test-changed lint ready coverage flaky mutations house diagnosis reference chaos in-place sim docs demo recording example-etcd bench fuzz clean torch nvrx google frameworks mkdocs image
.PHONY: promtool system compiled
.DEFAULT_GOAL = test

test: $(VENV)/.dev torch promtool system compiled ready
	@echo "testing, $(AT_ONCE) at a time: what proves every promise (make test-all: everything)"
	@$(PYTEST) --everyday $(ARGS)

test-all: $(VENV)/.dev torch nvrx google frameworks mkdocs image promtool system compiled ready
	@echo "testing, $(AT_ONCE) at a time: everything"
	@$(PYTEST) $(ARGS)

test-changed: $(VENV)/.dev torch compiled
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/tools/changed.py --everyday $(ARGS)

# A rank that is killed takes its numbers along: what it has run counts where another one has run it.
coverage: $(VENV)/.dev torch promtool system compiled ready
	@rm -f bench-results/coverage*; mkdir -p bench-results
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m coverage run -m pytest $(PARALLEL) --everyday $(ARGS); \
	    $(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report

flaky: $(VENV)/.dev torch promtool system compiled
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/tools/flaky.py --times $(or $(N),20) -- $(PARALLEL) \
	    $(or $(FILE),--everyday) $(ARGS)

mutations: $(VENV)/.dev torch compiled
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/tools/mutate.py $(ARGS)

house: $(VENV)/.dev
	@$(BIN)/python tests/tools/house.py $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python tests/tools/failure_path.py 2>/dev/null | tail -1

diagnosis: $(VENV)/.dev
	@$(BIN)/python tests/tools/diagnosis_scores.py $(ARGS)

reference: $(VENV)/.dev
	@$(BIN)/python tests/tools/write_reference.py

docs: mkdocs
	@test -e $(VENV)/site/.done && NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --quiet \
	    && echo "wrote site/; its search needs a server: $(PYTHON) -m http.server --directory site"

wheels: $(VENV)/.core
	@$(PIP) wheel --no-deps --wheel-dir dist . $(wildcard distributions/*)

release: $(VENV)/.core
	@$(BIN)/python tests/tools/release.py dist

# Beside lint, pytest compiles the tests once, which each of its workers would else do for itself.
ready: $(VENV)/.dev
	@echo "lint"
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(MAKE) --no-print-directory lint; \
	    code=$$?; wait; exit $$code

lint: $(VENV)/.dev
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m mypy --no-error-summary
	@$(BIN)/python tests/tools/lint_client.py

sim: $(VENV)/.core
	@$(BIN)/holdfast simulate $(or $(ARGS),--seeds 0:10000)

# Real jobs, real faults, at random moments. It goes on where it has stopped, and says what this machine lacks for the others.
chaos: $(VENV)/.dev torch system compiled
	@$(BIN)/python tests/chaos/campaign.py $(if $(KINDS),--kinds "$(KINDS)") $(if $(TRIES),--tries $(TRIES)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

in-place: $(VENV)/.dev torch compiled
	@$(BIN)/python tests/tools/in_place.py $(or $(ARGS),any --failures 1000)

demo: $(VENV)/.core torch
	@$(BIN)/python examples/demo.py $(ARGS)

recording: $(VENV)/.dev torch
	@$(BIN)/python tests/tools/record_demo.py

example-etcd: $(VENV)/.dev torch
	@$(BIN)/python examples/multi_container/without_docker.py

bench: $(VENV)/.dev torch nvrx google frameworks compiled
	@$(BIN)/python benchmarks/run.py $(ARGS)

# atheris is there for Linux and some Pythons only: where it cannot be had, the script says so and ends well.
fuzz: $(VENV)/.core
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(PIP) install --editable ".[fuzz]" || echo "atheris is not in reach"
	@$(BIN)/python tests/security/fuzz_decoder.py $(FUZZ_S)
	@$(BIN)/python tests/kit/stages/lying_member.py $(FUZZ_S)
	@$(BIN)/python tests/kit/stages/lying_elector.py $(FUZZ_S)

clean:
	rm -rf $(VENV) build dist site bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are files inside the environment: they go when it goes, and are remade when pyproject.toml is newer.

$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
	    || { echo "$(PYTHON) is older than 3.11: name a newer one, as in make PYTHON=python3.12"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable . || { echo "pip cannot install Holdfast's four needs: is a package index in reach? (pip config list)"; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(PIP) install --editable ".[dev]" || { echo "pip cannot install what the tests need: is a package index in reach?"; exit 1; }
	@touch $@

# Without PyTorch in reach the rest still works: its tests are skipped and say so. No stamp then, so that the next run tries again.
torch: $(VENV)/.core
	@test -e $(VENV)/.torch || { test -z "$(TORCH)" && echo "leaving PyTorch out"; } \
	    || { echo "installing $(TORCH)"; $(PIP) install $(TORCH) && touch $(VENV)/.torch; } \
	    || echo "PyTorch is not in reach: going on without it"

# NVRx's client of a node health service came with 0.5. Its wheels ask for a newer C library than most have, which that client
# does not need: so its files are put into a folder of their own, for those tests only.
NVRX_HEALTH ?= nvidia-resiliency-ext==0.6.0 protobuf

nvrx: torch
	@test -e $(VENV)/.nvrx || { echo "installing NVRx"; $(PIP) install --no-deps $(NVRX) && touch $(VENV)/.nvrx; } 2>/dev/null \
	    || echo "NVRx is not in reach: its side of the comparison is skipped"
	@test -e $(VENV)/nvrx-0.6 || $(PIP) install --no-deps --platform manylinux_2_39_x86_64 --only-binary=:all: \
	    --target $(VENV)/nvrx-0.6 $(NVRX_HEALTH) 2>/dev/null || echo "NVRx 0.6 is not in reach: its health client is not tested"

# Google's client and daemon, which holdfast.google and `holdfast daemon` are tested with. They pin half of their fifty needs, and
# are there for CPython 3.10 to 3.12 on x86-64 only.
google: $(VENV)/.dev
	@test -e $(VENV)/google/.done || { echo "installing Google's resiliency supervisor"; $(PYTHON) -m venv $(VENV)/google \
	    && $(VENV)/google/bin/python -m pip --disable-pip-version-check --quiet install $(GOOGLE) && touch $(VENV)/google/.done; } \
	    2>/dev/null || { rm -rf $(VENV)/google; echo "Google's supervisor is not in reach: its side is skipped"; }
	@test -e $(VENV)/goodput/.done || { $(PIP) install --no-deps --target $(VENV)/goodput $(GOODPUT) 2>/dev/null \
	    && touch $(VENV)/goodput/.done; } || { rm -rf $(VENV)/goodput; echo "Google's goodput library is not in reach"; }

# Over what deploy/Dockerfile is built in a test: Debian's Python as an image, and the wheels that the build needs.
IMAGE   = $(VENV)/image
BUILDAH = buildah --root $(abspath $(IMAGE))/store --runroot $(abspath $(IMAGE))/run --storage-driver vfs
image: $(VENV)/.dev
	@test -e $(IMAGE)/.done || test "$$(id -u)" != 0 || { echo "making the base of an image"; rm -rf $(IMAGE); mkdir $(IMAGE); { \
	    { command -v buildah && command -v mmdebstrap || { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	        apt-get -qq install --no-install-recommends buildah mmdebstrap; }; } \
	    && mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,ca-certificates \
	        --customize-hook='rm "$$1"/usr/lib/python3*/EXTERNALLY-MANAGED && ln -s python3 "$$1"/usr/bin/python' \
	        "$$(. /etc/os-release && echo $$VERSION_CODENAME)" $(IMAGE)/base.tar \
	    && $(PIP) download --dest $(IMAGE)/wheels ".[kubernetes,grpc,supervisor]" hatchling \
	    && $(BUILDAH) from --name base scratch && $(BUILDAH) add base $(IMAGE)/base.tar / \
	    && $(BUILDAH) commit base localhost/python:debian && rm $(IMAGE)/base.tar \
	    && $(BUILDAH) run --isolation chroot base -- python -c "import sys; print('%d.%d' % sys.version_info[:2])" > $(IMAGE)/version \
	    && $(BUILDAH) rm base && mv $(IMAGE)/version $(IMAGE)/.done; } >/dev/null 2>&1 \
	    || echo "it cannot be made here: no image is built"; }

# What builds the site of the documentation, in an environment of its own.
mkdocs: $(VENV)/.core
	@test -e $(VENV)/site/.done || { echo "installing MkDocs"; $(PYTHON) -m venv $(VENV)/site \
	    && $(VENV)/site/bin/python -m pip --disable-pip-version-check --quiet install $(SITE) && touch $(VENV)/site/.done; } \
	    2>/dev/null || { rm -rf $(VENV)/site; echo "MkDocs is not in reach: the site cannot be built"; }

# As pip does for a user; an editable install leaves it out, and where PYTHONDONTWRITEBYTECODE is set each start would compile anew.
compiled: $(VENV)/.core
	@$(BIN)/python -m compileall -q src

# The trainers that we have callbacks for, and JAX. Trainers would bring PyTorch if it is not there, and any version of it, so only
# after it. torchtitan, DeepSpeed and Ray have folders of their own, for their tests only.
frameworks: torch
	@test -e $(VENV)/.frameworks || test ! -e $(VENV)/.torch || { echo "installing Lightning, Transformers and JAX"; \
	    $(PIP) install --editable ".[lightning,transformers,jax]" && touch $(VENV)/.frameworks; } \
	    || echo "Lightning, Transformers and JAX are not in reach: their tests are skipped"
	@test -e $(VENV)/torchtitan/.done || test ! -e $(VENV)/.frameworks || { echo "installing torchtitan"; \
	    $(PIP) install --no-deps --target $(VENV)/torchtitan $(TITAN) 2>/dev/null && touch $(VENV)/torchtitan/.done; } \
	    || { rm -rf $(VENV)/torchtitan; echo "torchtitan is not in reach: its tests are skipped"; }
	@test -e $(VENV)/deepspeed/.done || test ! -e $(VENV)/.torch || { echo "installing DeepSpeed"; DS_BUILD_OPS=0 DS_ACCELERATOR=cpu \
	    $(PIP) install --no-build-isolation --no-deps --target $(VENV)/deepspeed $(DEEPSPEED) 2>/dev/null && touch $(VENV)/deepspeed/.done; } \
	    || { rm -rf $(VENV)/deepspeed; echo "DeepSpeed is not in reach: its test is skipped"; }
	@test -e $(VENV)/ray/.done || { echo "installing Ray"; $(PIP) install --no-deps --target $(VENV)/ray $(RAY) 2>/dev/null \
	    && touch $(VENV)/ray/.done; } || { rm -rf $(VENV)/ray; echo "Ray is not in reach: its tests are skipped"; }

# What judges the alert rules. Taken out of Debian's package of Prometheus, which would start one if it were installed.
promtool: $(VENV)/.dev
	@test -x $(BIN)/promtool || command -v promtool >/dev/null || { cd $(BIN) && { apt-get -qq download prometheus \
	    || { apt-get -qq update && apt-get -qq download prometheus; }; } && dpkg --fsys-tarfile prometheus_*.deb \
	    | tar -x --strip-components=3 ./usr/bin/promtool && rm prometheus_*.deb; } >/dev/null 2>&1 \
	    || echo "promtool is not in reach: the alert rules are not shown to it"

# What only tests use of the system: hosts played by network namespaces, an etcd and a Slurm of their own, a browser. As root on Debian it is
# installed where it is missing, and no daemon of it is started; elsewhere those tests are skipped and say why.
system:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for need in ip:iproute2 nft:nftables etcd:etcd-server srun:slurm-wlm munged:munge numactl:numactl chromium:chromium; do \
	    command -v "$${need%:*}" >/dev/null || missing="$$missing $${need#*:}"; \
	done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
	    && apt-get -qq update && apt-get -qq install --no-install-recommends $$missing; } >/dev/null 2>&1 \
	    || echo "cannot be installed here:$$missing; tests that need them are skipped"
