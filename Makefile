# `make demo` and `make test` do all the set-up; only Python 3.11 or newer must be there.
#   make PYTHON=python3.12 test     another interpreter
#   make VENV=somewhere test        another virtual environment

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2

PY  := $(VENV)/bin/python
# -qq: warnings of pip's configuration stay away, errors are printed.
PIP_INSTALL := $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

SB3  := $(VENV)/.installed-sb3
DEV  := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

# Figures go to files.
export MPLBACKEND := Agg

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all docs attack lint format browser tables bench-exact bench-sparse bench-selection bench-fits bench-off-policy bench-evaluate bench-compare bench-policy-iteration bench-ablation bench-model-or-not bench-threads bench-imports bench-markov clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-24s %s\n", $$1, $$2 }'

demo: $(SB3) ## train a small agent (once), evaluate it, write a page about it to demo/
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) examples/evaluate_sb3_agent.py

test: lint ## format, lint, types, tests, doctests and examples; CI runs `make test docs`
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --durations=30

test-all: ## the tests with Python 3.11, 3.12 and 3.13, each that is there, in .venv-<version>
	@for version in 3.11 3.12 3.13; do \
		if python$$version -c '' 2>/dev/null; then \
			$(MAKE) --no-print-directory PYTHON=python$$version VENV=.venv-$$version JOBS=$(JOBS) test || exit 1; \
		else echo "python$$version is not there: skipped"; fi; \
	done

docs: $(DOCS) ## the site, docs/_build/html/index.html; its tutorials are run
	$(PY) docs/build.py

attack: $(DEV) ## 100 000 hostile cases, an hour at most: a table of categories, cases, failures and seconds
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) -m tests.adversarial --cases 100000 --seconds 3600

lint: $(DEV) ## format, lint and types only
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

format: $(DEV) ## rewrite the sources as `make lint` wants them
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

browser: ## install chromium (Debian, as root), for the tests of pages; without it they are skipped
	command -v chromium || { apt-get -q update && \
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; }

tables: $(DEV) ## docs/selection.md, off-policy.md, policy-iteration.md, compare.md and evaluation.md from the stored results
	@printf '# Estimating V\n\nWritten by `make tables` from `benchmarks/results/selection.json` (`python benchmarks/selection.py`, seeds 100 to 109).\n\n' > docs/selection.md
	$(PY) benchmarks/selection.py --from-json >> docs/selection.md
	@printf '# Estimating Q off-policy\n\nWritten by `make tables` from `benchmarks/results/off_policy.json` (`python benchmarks/off_policy.py`, seeds 100 to 104).\n\n' > docs/off-policy.md
	$(PY) benchmarks/off_policy.py --from-json >> docs/off-policy.md
	@printf '# Learning to act\n\nWritten by `make tables` from `benchmarks/results/policy_iteration/` (`python benchmarks/policy_iteration.py --seeds 10`; the other agents: `python benchmarks/control_peers.py`).\n\n' > docs/policy-iteration.md
	$(PY) benchmarks/policy_iteration.py --from-json >> docs/policy-iteration.md
	@printf '\n**Without one part each**: the policy after 1 000 steps on 100 fresh episodes, seeds 200 to 204 (`python benchmarks/ablation.py`).\n\n' >> docs/policy-iteration.md
	$(PY) benchmarks/ablation.py --from-json >> docs/policy-iteration.md
	@printf '\n**With and without a model where the model is in trouble**: mean return after 2 000 steps (`python benchmarks/model_or_not.py`).\n\n' >> docs/policy-iteration.md
	$(PY) benchmarks/model_or_not.py --from-json >> docs/policy-iteration.md
	@printf '# Comparing agents\n\nWritten by `make tables` from `benchmarks/results/compare.json` (`python benchmarks/compare.py`; the script says what the columns are).\n\n' > docs/compare.md
	$(PY) benchmarks/compare.py --from-json >> docs/compare.md
	@printf '# Evaluating trained agents\n\nWritten by `make tables` from `benchmarks/results/evaluate/` (`python benchmarks/evaluate.py` and `--starts`): V after 10 000 transitions, against V^π at 100 states of fresh episodes.\n\n' > docs/evaluation.md
	$(PY) benchmarks/evaluate.py --from-json >> docs/evaluation.md

bench-exact: $(DEV) ## time and memory beside other libraries and the LAPACK floor
	$(PY) benchmarks/exact.py

bench-sparse: $(DEV) ## the sparse method beside other libraries (benchmarks/requirements.txt) and the BLAS floor
	$(PY) benchmarks/sparse.py

bench-selection: $(DEV) ## V beside LSTD, scikit-learn and others, over tasks whose value function is known
	$(PY) benchmarks/selection.py --processes $(JOBS)

bench-off-policy: $(DEV) ## Q of another policy beside LSTDQ, FQE and others, over systems whose Q is known
	$(PY) benchmarks/off_policy.py --processes $(JOBS)

bench-fits: $(DEV) ## default fits beside scikit-learn's, irrelevant inputs, other units
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) benchmarks/fits.py

bench-evaluate: $(DEV) ## error and coverage of V for fifteen trained agents, beside other ways to it
	$(PY) benchmarks/evaluate.py

bench-compare: $(DEV) ## coverage and width of the intervals of comparisons, paired and unpaired
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) benchmarks/compare.py

bench-policy-iteration: $(DEV) ## policies after 1 000 to 10 000 steps on eleven tasks, beside DQN, PPO and QR-DQN (cached)
	$(PY) benchmarks/policy_iteration.py --processes $(JOBS)

bench-ablation: $(DEV) ## policy iteration without one part each
	$(PY) benchmarks/ablation.py --processes $(JOBS)

bench-model-or-not: $(DEV) ## policy iteration with and without a model, where the model is in trouble
	$(PY) benchmarks/model_or_not.py --processes $(JOBS)

bench-threads: $(DEV) ## fits with BLAS threads as they come, beside one thread and a busy process
	$(PY) benchmarks/threads.py

bench-imports: $(DEV) ## processor time of `import gptd_rl`
	$(PY) benchmarks/imports.py

bench-markov: $(DEV) ## how often the test of the Markov property rejects, where it should and where it should not
	$(PY) benchmarks/markov.py

clean: ## remove what tools left behind, except the virtual environment
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf demo any_policy runs relevances.png policy_iteration.png
	rm -rf docs/_build docs/_generated docs/reference/generated
	find gptd_rl envs agents tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environments as well
	rm -rf $(VENV) .ci-venv .venv-3.*

# One environment, two fillings: what the demo needs, and everything. Each is renewed when the requirements change.
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit("gptd-rl needs Python 3.11 or newer, this is %d.%d. Try: make PYTHON=python3.12 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(SB3): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP_INSTALL) -e ".[sb3,render]"
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP_INSTALL) -e ".[sb3,render,minari,dask,pandas,hub,dev]"
	@touch $(SB3) $@

$(DOCS): $(DEV)
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@
