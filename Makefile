# make .venv   environment in .venv, on python3's own CUDA torch where it has one (bench/setup_venv.py decides)
# make test    lint, then every test; those by Triton's interpreter in a process of their own, since TRITON_INTERPRET
#              counts when a kernel is decorated
# make compile-matrix   the kernels compiled for each arch under the oldest, the installed and the newest Triton
# make bench   the quick suite and its roofline; DEVICE=cpu, SUITE=standard and RUN=directory change it
# make gpu     all that a rented GPU is wanted for, in BUDGET (480s), by PYTHON's own torch: installs nothing
# make lint    ruff and mypy; make fmt lets ruff rewrite

PYTHON ?= python3
SUITE ?= quick
DEVICE ?=
BUDGET ?= 480s
ifndef RUN
RUN := reports/run-$(shell date -u +%Y%m%dT%H%M%SZ)
endif

OLDEST_TRITON := 3.6.0
NEWEST_TRITON := 3.9.0
STAMP := .venv/.stamp
PY := .venv/bin/python

.DEFAULT_GOAL := test
.PHONY: .venv lint fmt test compile-matrix bench gpu

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

# Another Triton, unpacked beside the environment: the rest of it is the environment's own.
.triton/%: | $(STAMP)
	rm -rf $@.part
	$(PY) -m pip install -qq --disable-pip-version-check --no-deps --target $@.part triton==$*
	mv $@.part $@

test: lint .triton/$(OLDEST_TRITON)
	$(PY) -m pytest -n 2 -m 'not speed' --dist loadgroup
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 --dist loadgroup tests/interpreter
	$(PY) -m pytest -m speed

compile-matrix: $(STAMP) .triton/$(OLDEST_TRITON) .triton/$(NEWEST_TRITON)
	$(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py
	PYTHONPATH=.triton/$(OLDEST_TRITON) $(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py
	PYTHONPATH=.triton/$(NEWEST_TRITON) $(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py

# A run with failed cases still has a roofline for the others, and still fails.
bench: $(STAMP)
	@status=0; \
	$(PY) -m bench run --suite $(SUITE) $(if $(DEVICE),--device $(DEVICE)) -o $(RUN) || status=$$?; \
	if [ -s $(RUN)/records.jsonl ]; then \
		$(PY) -m analysis roofline $(RUN) || status=$$?; \
		echo "report: $(RUN)"; \
	fi; \
	exit $$status

# By python3 as it is on the image, not by .venv: making that would take minutes and a network.
gpu:
	@$(PYTHON) -m bench gpu --budget $(BUDGET) -o $(RUN)
