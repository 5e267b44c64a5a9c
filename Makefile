# Everything runs in .venv, which each target makes and fills with what it needs. pip, not uv or poetry:
# constraints.txt pins torch, and a looser request would pull several GB of CUDA packages.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt setup.py $(wildcard src/warmstore/_native/*.[ch])

.PHONY: demo examples test test-slow test-demo test-identity test-fleet test-site test-gpu docs test-native test-servers torture wheels check-wheels lint format architecture bench bench-quick bench-data clean

# REMOTE=1 shows two machines that share what they compile by a local S3 server.
ifdef REMOTE
demo: .venv/has-dev
	$(BIN)/python examples/team.py
else
demo: .venv/has-demo
	$(BIN)/warmstore demo
endif

examples: .venv/has-examples
	$(BIN)/python examples/vision.py build/examples
	$(BIN)/python examples/minilm.py build/examples

# Hundreds of processes are started, and none of them writes bytecode (tests/conftest.py): each would compile the package.
unexport PYTHONDONTWRITEBYTECODE
test: .venv/has-dev test-servers
	$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -n auto

# One test at a time to each process: with a share that is all damages, one would go on when the others have ended.
# FRESH=1 gives each program that a test starts an interpreter of its own, in the place of a fork: that takes hours.
# PART=1/2 runs every second test, and PART=2/2 the others.
test-slow: .venv/has-dev test-servers
	$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -n auto --slow --maxschedchunk 1 $(if $(FRESH),--fresh) $(if $(PART),--part $(PART))

# The demo as a user starts it: most of it is on one core.
test-demo: .venv/has-dev
	$(BIN)/python -m pytest --slow tests/cli/test_demo.py

# Thousands of edits, none of which may be answered from a cache; FRESH=1 adds those in interpreters of their own.
test-identity: .venv/has-dev
	$(BIN)/python -m pytest tests/identity -n auto --slow $(if $(FRESH),--fresh)

# Clusters of Ray and Spark on this machine, and servers from npm; needs Java 17 for Spark.
test-fleet: .venv/has-fleet test-servers
	$(BIN)/python -m pytest tests/fleet --fleet

# Pages that people look at, in headless Chromium: the site and the report. Needs apt-get install chromium.
test-site: docs
	$(BIN)/python -m pytest tests/site --site

# On a CUDA GPU, with a torch built for it: cached modules, transfers, compiled kernels. Without one, a line says so.
test-gpu: .venv/has-dev
	$(BIN)/python -m pytest tests/gpu --gpu -rs -s

# The native floor's C under sanitizers: addresses and undefined behaviour, then threads.
test-native: .venv/has-dev
	$(BIN)/python -m tests.native.sanitized

# The sdist, and a wheel for this platform, in dist/; cibuildwheel builds the others (pyproject.toml).
wheels: .venv/has-wheels
	$(BIN)/python -m tests.packaging.distributions

# Both in some twenty empty environments: extras, pins, versions of Python. ONLY="base" tries the one of that name, of what is in dist/.
check-wheels: .venv/has-wheels
	$(BIN)/python -m tests.packaging $(if $(ONLY),"$(ONLY)")

# nginx for the tests of remotes, unpacked into build/servers; needs apt-get and no root, and tests skip without it.
test-servers: .venv/has-dev
	$(BIN)/python -m tests.remote.packages

lint: .venv/has-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/has-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The picture of docs/architecture.md, drawn from the sources; a test fails where it no longer shows them.
architecture: .venv/has-dev
	$(BIN)/python docs/architecture_picture.py

# Campaigns against power cuts, failing calls, damaged files and made-up inputs, which go on where they stopped; the counts are
# in build/torture.
torture: .venv/has-fuzz
	$(BIN)/python -m tests.faults.torture

# The site in build/site, from docs and docstrings: broken links and docstrings that do not match are errors. Not a part of
# `lint`, which has to stay quick: this takes half a minute.
docs: .venv/has-docs
	$(BIN)/python docs/build_site.py

bench: .venv/has-bench
	$(BIN)/python -m benchmarks

bench-quick: .venv/has-bench
	$(BIN)/python -m benchmarks --quick

# Debian packages of speech, photos and texts, unpacked into benchmarks/data; needs apt-get and no root.
bench-data: .venv/has-bench
	$(BIN)/python -m benchmarks.pipeline_data

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# One stamp an extra. Debian ships Python without ensurepip, and lets pip install into virtual environments only.
.venv/has-%: $(SOURCES) | .venv/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$*]"
	@touch $@

.venv/bin/pip:
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --clear --without-pip .venv && \
		$(PYTHON) -m pip --python .venv/bin/python install --quiet pip; }
