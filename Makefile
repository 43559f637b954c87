# Every target sets up .venv by itself when it is missing or out of date. PYTHON= chooses the
# interpreter that .venv is made with; without it a good .venv is kept, whatever made it.
# All paths are relative: the checkout may lie below a folder with a space in its name.

# Written last, so that a half-made .venv has none: the interpreter and the place .venv was made
# with and in, then a checksum of what was installed.
STAMP := .venv/made-from

ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell grep -qsF " in $$(pwd -P)" $(STAMP) && .venv/bin/python -c '' 2>/dev/null \
	&& echo .venv/bin/python || echo python3)
endif

PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help generate check test upstream-suites lint clean venv interpreter-matrix validate compile \
	compile-large mutants report predict pipelining bench-peers predictor-accuracy

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r target does; do \
		printf 'make %-18s %s\n' "$$target" "$$does"; done

generate: venv ## emit generated/ and specs/schema.json, as far as they are out of date
	@$(PY) -m rpagen generate

check: venv ## tell which emitted files are missing, stale, orphaned or edited by hand
	@$(PY) -m rpagen check

test: generate ## emit what is out of date, then run all tests; ARGS= goes to pytest
	$(PY) -m pytest -n 2 --dist loadgroup $(ARGS)

upstream-suites: generate ## tpu-inference's own tests of its kernel, run on ours; ARGS=--help
	$(PY) -m rpagen.evidence.upstream $(ARGS)

validate: venv ## all calls of every core kernel against the reference, and a record of them
	$(PY) -m rpagen validate --seeds 3 --record docs/evidence/validate.json

compile: venv ## every core kernel through the TPU compiler, and a record of what it took
	$(PY) -m rpagen compile --record docs/evidence/compile.json

compile-large: venv ## the same at the sizes of an 8B model, which takes an hour
	$(PY) -m rpagen compile --shape 32x8x128 --page-size 64 --tokens 2048 --sequences 64 \
		--context 8192 --chunk-prefill-size 512 --record docs/evidence/compile-large.json

predict: venv ## the time of core kernels on TPUs that are not here; ARGS=--help
	$(PY) -m rpagen predict $(or $(ARGS),all)

pipelining: venv ## what each axis of the pipelining is worth: docs/pipelining.md, in half an hour
	$(PY) -m rpagen.schedule.pipelining $(ARGS)

mutants: generate ## put every fault of a table into kernels, and show what finds it; ARGS=--help
	$(PY) -m rpagen.evidence.kill $(or $(ARGS),--record docs/evidence/mutants.json)

report: generate ## write report.html: what was tried of every kernel, and what came of it
	$(PY) -m rpagen report $(ARGS)

bench-peers: venv ## our kernels beside public ones, predicted; PYTHON312= for them, ARGS=--help
	PYTHON312="$(PYTHON312)" $(PY) -m rpagen.schedule.bench $(ARGS)

predictor-accuracy: venv ## published times of kernels beside predicted ones; PYTHON312=, ARGS=--help
	PYTHON312="$(PYTHON312)" $(PY) -m rpagen.schedule.accuracy $(ARGS)

lint: venv ## ruff and mypy over the generator, its tests and the example
	$(PY) -m ruff check rpagen tests examples
	$(PY) -m ruff format --check rpagen tests examples
	$(PY) -m mypy

interpreter-matrix: ## the interpreter with jax 0.10.2, 0.11.2 and the newest; PYTHONS= for them
	@"$(PYTHON)" tests/interpreter_matrix.py $(PYTHONS)

clean: ## remove .venv and all caches; what is checked in stays
	rm -rf .venv .upstream .peers .matrix .stamps .schedules .mypy_cache .pytest_cache \
		.ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: rpagen needs Python 3.11 or newer: name one with PYTHON=, a path or a command' >&2; exit 2; }
	@set -e; \
	made_by="$$("$(PYTHON)" -c 'import sys; print("Python %d.%d" % sys.version_info[:2], "of", \
		sys.base_prefix)') in $$(pwd -P)"; \
	installed="$$(cat pyproject.toml constraints.txt | cksum)"; \
	if ! grep -qsxF "$$made_by" $(STAMP); then \
		echo "making .venv with $$made_by: this takes a minute"; \
		rm -rf .venv; \
		"$(PYTHON)" -m venv .venv; \
	elif ! grep -qsxF "$$installed" $(STAMP); then \
		echo "bringing .venv up to date"; \
		rm -f $(STAMP); \
	fi; \
	if ! [ -f $(STAMP) ]; then \
		$(PIP) pip hatchling editables; \
		$(PIP) --no-build-isolation --editable '.[dev]'; \
		printf '%s\n' "$$made_by" "$$installed" > $(STAMP); \
	fi
