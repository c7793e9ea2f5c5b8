# make .venv   environment in .venv, on python3's own CUDA torch where it has one (bench/setup_venv.py decides)
# make test    lint, then every test; those by Triton's interpreter in a process of their own, since TRITON_INTERPRET
#              counts when a kernel is decorated; kernels are compiled for sm_90 alone
# make compile-matrix   the kernels compiled for every arch under the oldest, the installed and the newest Triton
# make compile-compare  what the compilers make of each kernel for sm_90 now, against reports/; fails when it is worse
# make compile-baseline the same written to reports/, for sm_100 too, as what later changes are compared with
# make browser-test    the report opened in the system's Chromium
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

COMPILED := .triton/compiled
OLDEST_TRITON := 3.6.0
NEWEST_TRITON := 3.9.0
STAMP := .venv/.stamp
PY := .venv/bin/python

.DEFAULT_GOAL := test
.PHONY: .venv lint fmt test compile-matrix compile-compare compile-baseline browser-test bench gpu

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

# One cache for what they compile, which knows one Triton from another; apart from that of GPU runs, since the launches
# of the stub driver are in it.
test compile-matrix compile-compare compile-baseline: export TRITON_CACHE_DIR ?= $(CURDIR)/.triton/cache

test: lint .triton/$(OLDEST_TRITON)
	$(PY) -m pytest -n 2 -m 'not speed and not perf and not matrix' --dist loadgroup
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 --dist loadgroup tests/interpreter
	$(PY) -m pytest -m speed

compile-matrix: $(STAMP) .triton/$(OLDEST_TRITON) .triton/$(NEWEST_TRITON)
	$(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py
	PYTHONPATH=.triton/$(OLDEST_TRITON) $(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py
	PYTHONPATH=.triton/$(NEWEST_TRITON) $(PY) -m pytest -n 2 tests/test_compile.py tests/test_kernel_builds.py

compile-compare: $(STAMP) .triton/$(OLDEST_TRITON)
	rm -rf $(COMPILED)
	$(PY) -m bench compile --arch 90 -o $(COMPILED)/installed
	PYTHONPATH=.triton/$(OLDEST_TRITON) $(PY) -m bench compile --arch 90 -o $(COMPILED)/oldest
	@status=0; \
	$(PY) -m analysis compile --baseline reports/compile-sm90 $(COMPILED)/installed || status=$$?; \
	$(PY) -m analysis compile --baseline reports/compile-sm90-oldest $(COMPILED)/oldest || status=$$?; \
	exit $$status

compile-baseline: $(STAMP) .triton/$(OLDEST_TRITON)
	rm -rf reports/compile-sm90 reports/compile-sm90-oldest reports/compile-sm100
	$(PY) -m bench compile --arch 90 -o reports/compile-sm90
	PYTHONPATH=.triton/$(OLDEST_TRITON) $(PY) -m bench compile --arch 90 -o reports/compile-sm90-oldest
	$(PY) -m bench compile --arch 100 -o reports/compile-sm100
	$(PY) -m analysis compile reports/compile-sm90
	$(PY) -m analysis compile reports/compile-sm90-oldest
	$(PY) -m analysis compile reports/compile-sm100

# The page in the system's Chromium, without a screen and without a network.
browser-test: $(STAMP)
	$(PY) -m pytest tests/browser

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
