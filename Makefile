# Every target depends on setup: a fresh machine needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
PAGES := *.md docs/*.md hyperparams/*.md requirements/*.md benchmarks/log.md
PARALLEL := --numprocesses $(JOBS) --dist loadfile# tests of one file share trained jobs, so one process runs them

.PHONY: help setup demo report-picture pipeline image push lock lock-base scan engine test test-docker test-fast test-gpu test-long gpu-check faults host-faults fuzz parity lint docs bench bench-busy bench-classes bench-explain bench-findings bench-gpu bench-latency bench-memory bench-monitor bench-overhead bench-packing bench-peers bench-pipeline bench-plan bench-prepare bench-quality bench-retrain bench-roles bench-reviews bench-preprocess bench-published bench-serving bench-small bench-text bench-transform bench-tune

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## create the virtual environment and install everything

# Bytecode is compiled here, on all cores (pip uses one). Where PYTHONDONTWRITEBYTECODE is set, each process of a job would
# otherwise compile its imports again: a worker took 10 s to start instead of 4.5 s. Files that are templates fail.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib contracts container pipeline testing || true
	touch $(STAMP)

demo: setup      ## run a whole job on generated data in two processes (DEMO_ROOT=demo)
	$(BIN)/python -m container demo --root $(or $(DEMO_ROOT),demo)

report-picture: setup ## write docs/report.png from the demo's report (DEMO_ROOT=demo; needs Chromium)
	$(BIN)/python docs/report_picture.py $(or $(DEMO_ROOT),demo)/output/data/report.html

pipeline: setup  ## run a pipeline on this machine, cached by content (PIPELINE=examples/pipeline.yaml)
	$(BIN)/python -m pipeline run --config $(or $(PIPELINE),examples/pipeline.yaml) --root $(or $(PIPELINE_ROOT),pipeline_run)

test: setup      ## run the tests, fast ones first (JOBS=2 files at a time)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not docker'
	$(BIN)/python -m pytest $(PARALLEL) -m 'slow and not long and not docker'

test-long: setup ## run the tests that make test omits: whole grids, faults, benchmarks (LONG=files)
	$(BIN)/python -m pytest $(PARALLEL) -m long $(LONG)

test-fast: setup ## run the tests that take seconds
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not docker'

test-gpu: setup  ## run the tests that need a GPU, on this machine's GPUs; other tests see none
	$(BIN)/python -m pytest -m gpu $$(grep -rl --include='test_*.py' 'mark\.gpu' tests)

gpu-check: setup ## show in 9 minutes what only a GPU can show (OUT=build/gpu GPU_CHECK="--minutes 9 --steps A,B --gpus N")
	$(BIN)/python -m benchmarks.gpu_check --out $(or $(OUT),build/gpu) $(GPU_CHECK)

engine:
	@docker info > /dev/null 2>&1 || { echo 'no Docker engine responds. Start one, or set DOCKER_HOST.' >&2; exit 1; }

test-docker: engine setup ## build the image and test its containers, on one and two hosts (needs a Docker engine)
	$(BIN)/python -m pytest -m docker -s tests/docker

image:           ## build the image (IMAGE=text-table-trainer)
	docker build --network host --build-arg REVISION=$$(git rev-parse HEAD) --tag $(or $(IMAGE),text-table-trainer) .

push: image      ## push the image to ECR under the commit's hash, and print its digest (REPOSITORY=ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME)
	aws ecr get-login-password --region $(word 4,$(subst ., ,$(REPOSITORY))) | docker login --username AWS --password-stdin $(firstword $(subst /, ,$(REPOSITORY)))
	docker tag $(or $(IMAGE),text-table-trainer) $(REPOSITORY):$$(git rev-parse HEAD)
	docker push --quiet $(REPOSITORY):$$(git rev-parse HEAD)
	docker inspect --format '{{join .RepoDigests "\n"}}' $(REPOSITORY):$$(git rev-parse HEAD) | grep '^$(REPOSITORY)@'

scan: setup      ## check the image's packages for known vulnerabilities (IMAGE=...; DEBIAN_OSV=all.zip: without a network for Debian's)
	$(BIN)/python -m pip install --quiet 'pip-audit>=2.9'
	$(BIN)/pip-audit --disable-pip --require-hashes --requirement requirements/image.txt
	mkdir -p build
	$(if $(DEBIAN_OSV),,curl --fail --silent --show-error --output build/debian-osv.zip https://osv-vulnerabilities.storage.googleapis.com/Debian/all.zip)
	docker run --rm --network none --entrypoint cat $(or $(IMAGE),text-table-trainer) /usr/share/sbom/debian.cdx.json > build/debian.cdx.json
	$(BIN)/python requirements/scan_debian.py build/debian.cdx.json $(or $(DEBIAN_OSV),build/debian-osv.zip)

lock-base:       ## pin the base image of the Dockerfile by the digest that the registry gives now (needs a network)
	$(PYTHON) requirements/base_image.py --write

lock: setup      ## regenerate requirements/*.txt (CPU_WHEELS: folder or page of links with torch's CPU wheel)
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python requirements/lock.py --cpu-wheels $(CPU_WHEELS)

faults: setup    ## kill, stop and damage jobs at random moments, 66 trials (half an hour); run commands under faults of the machine
	FULL_FAULTS=1 $(BIN)/python -m pytest tests/training/test_faults.py -s
	$(BIN)/python -m testing.faults

host-faults: setup ## kill a random host or worker of one or two hosts, 20 trials (tests/job/hosts/test_host_faults.py)
	FULL_FAULTS=1 $(BIN)/python -m pytest tests/job/hosts/test_host_faults.py -s

fuzz: setup      ## run generated inputs against the product (FUZZ="--seed 7 --inputs 1000 --minutes 30 --kind tables")
	$(BIN)/python -m testing.fuzz $(FUZZ)

parity: setup    ## compare every parallel strategy and product with one process (20 to 40 minutes)
	$(BIN)/python -m benchmarks.parity $(PARITY)

lint: setup      ## check style, format, imports, spelling, the length of sentences, and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mdformat --check $(PAGES)
	$(BIN)/codespell $(PAGES) contracts container pipeline testing tests benchmarks examples
	$(BIN)/python docs/check_sentences.py
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: setup      ## regenerate the reference pages of docs/ and the picture in docs/pipeline.md
	$(BIN)/python docs/generate_hyperparameters.py
	$(BIN)/python docs/generate_steps.py
	$(BIN)/python docs/generate_pipeline.py

bench: bench-packing bench-prepare ## measure speed and memory

bench-busy: setup ## measure whole jobs by threads: alone, beside a busy process, under a quota; the server (BUSY="--before DIR --rounds 3")
	$(BIN)/python -m benchmarks.busy $(BUSY)

bench-classes: setup ## measure every model class on the clothing reviews: quality, size, speed, latency
	$(BIN)/python -m benchmarks.classes

bench-explain: setup ## measure the cost of reasons for a prediction (EXPLAIN="--repeats 20 --jobs DIR...": check jobs)
	$(BIN)/python -m benchmarks.explain $(EXPLAIN)

bench-findings: setup ## count false and missed findings of the report on simulated jobs (FINDINGS="--jobs 200")
	$(BIN)/python -m benchmarks.findings $(FINDINGS)

bench-gpu: setup ## measure training on GPUs: tokens/s, MFU, memory
	$(BIN)/python -m benchmarks.gpu

bench-latency: setup ## measure the latency of a single record: PyTorch, ONNX, fused, int8
	$(BIN)/python -m benchmarks.latency

bench-overhead: setup ## compare a training step in one process with a plain loop
	$(BIN)/python -m benchmarks.overhead

bench-packing: setup ## compare training speed: packed, padded to the longest, padded to 512
	$(BIN)/python -m benchmarks.packing

bench-peers: setup ## compare whole jobs with Hugging Face Trainer and AutoGluon (PEERS="--rounds 3 --autogluon PYTHON")
	$(BIN)/python -m benchmarks.peers $(PEERS)

bench-memory: setup ## measure each rank's memory under fsdp on 1, 2 and 4 processes
	$(BIN)/python -m benchmarks.memory

bench-monitor: setup ## measure the monitor: false alarms, shifts found, records/s, memory (MONITOR="--runs 200 --rows 5000000")
	$(BIN)/python -m benchmarks.monitor $(MONITOR)

bench-pipeline: setup ## measure the idle share of each pipeline schedule, from a trace
	$(BIN)/python -m benchmarks.pipeline

bench-plan: setup ## compare planned memory with real processes, and with a GPU's (PLAN="--gpu build/gpu/results.json --only PART")
	$(BIN)/python -m benchmarks.plan $(PLAN)

bench-prepare: setup ## measure data preparation: rate, memory over a million rows, time to open
	$(BIN)/python -m benchmarks.prepare

bench-preprocess: setup ## measure the preprocessing step on 5,000,000 rows: rows/s, peak memory
	$(BIN)/python -m benchmarks.preprocess $(PREPROCESS)

bench-published: setup ## measure published benchmarks fold by fold (PUBLISHED="--data imdb --folds 0 1 --systems joined best")
	$(BIN)/python -m benchmarks.published $(PUBLISHED)

bench-small: setup ## compare small tables with logistic regression and others (SMALL="--tables ... --r-packages DIR")
	$(BIN)/python -m benchmarks.small $(SMALL)

bench-quality: setup ## compare the presets and a boosted stack on the real tables (QUALITY="--tasks ... --systems ... --seeds ...")
	$(BIN)/python -m benchmarks.quality $(QUALITY)

bench-retrain: setup ## measure the steps that a training from an earlier model saves (RETRAIN="--seeds 1 2 3")
	$(BIN)/python -m benchmarks.retrain $(RETRAIN)

bench-roles: setup ## compare the roles that init chooses with the types of published columns (ROLES="--split train")
	$(BIN)/python -m benchmarks.roles $(ROLES)

bench-reviews: setup ## measure quality on the clothing reviews (benchmarks/review_data.py has their folder)
	$(BIN)/python -m benchmarks.reviews

bench-serving: setup ## compare the request handler with the plain ONNX session; serve 200 clients at once
	$(BIN)/python -m benchmarks.serving

bench-text: setup ## measure text steps and tokenizers on hostile texts of up to 5 MB: processor time by size
	$(BIN)/python -m benchmarks.text_steps

bench-transform: setup ## measure a batch transform: records/s beside the ONNX session, peak memory; TRANSFORM="--rows 100000"
	$(BIN)/python -m benchmarks.transform $(TRANSFORM)

bench-tune: setup ## measure the search of hyperparameters on the reviews: TPE, random, killed at random (TUNE="--trials 20 --kills 10")
	$(BIN)/python -m benchmarks.tune $(TUNE)
