# make .venv   environment in .venv, on python3's own CUDA torch where it has one (bench/setup_venv.py decides)
# make test    lint, then every test
# make bench   the quick suite and its roofline; DEVICE=cpu, SUITE=standard and RUN=directory change it
# make lint    ruff and mypy; make fmt lets ruff rewrite

PYTHON ?= python3
SUITE ?= quick
DEVICE ?=
ifndef RUN
RUN := reports/run-$(shell date -u +%Y%m%dT%H%M%SZ)
endif

STAMP := .venv/.stamp
PY := .venv/bin/python

.DEFAULT_GOAL := test
.PHONY: .venv lint fmt test bench

.venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt bench/setup_venv.py
	$(PYTHON) -m bench.setup_venv .venv
	@touch $@

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

fmt: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test: lint
	$(PY) -m pytest -n 2 -m 'not speed'
	$(PY) -m pytest -m speed

# A run with failed cases still has a roofline for the others, and still fails.
bench: $(STAMP)
	@status=0; \
	$(PY) -m bench run --suite $(SUITE) $(if $(DEVICE),--device $(DEVICE)) -o $(RUN) || status=$$?; \
	if [ -s $(RUN)/records.jsonl ]; then \
		$(PY) -m analysis roofline $(RUN) || status=$$?; \
		echo "report: $(RUN)"; \
	fi; \
	exit $$status
