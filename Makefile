# Two commands on a fresh machine: `make quickstart` runs the main job, `make test` passes the tests.
# Both install what they need into .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: quickstart test unit check clean

quickstart: $(STAMP)
	$(BIN)/whale doctor
	$(BIN)/whale run recipes/quickstart.toml

test: $(STAMP)
	$(BIN)/python -m pytest tests -n logical --dist loadfile --no-loadscope-reorder

unit: $(STAMP)
	$(BIN)/python -m pytest tests/unit -m "not slow" -n logical

check: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

# torch by its tested pin alone first: a range would choose another build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	sh scripts/system_packages.sh
	$(BIN)/whale models pull smollm2-135m
	touch $(STAMP)
