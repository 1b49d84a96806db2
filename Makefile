# `make demo` and `make test` set up all they need; every target can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n : 4)))
PROMPT ?= Tell me a story about a lost kite.
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

# What the build reads: when one of these changes, it is built again.
SOURCES := setup.py $(shell find csrc shaders torch_foundry/aot torch_foundry/core torch_foundry/msl -type f -not -name '*.pyc')

.PHONY: help demo test test-kernels test-models test-files test-metal test-others test-all test-nightly test-ray test-guidellm air air-own test-hf test-oldest test-lm-eval test-mlx test-attention test-gpu lint asan tsan fuzz check-macos agx bench bench-gpu results build format clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' Makefile | column -t -s '|'

demo: $(VENV)/.built  ## a story by the bundled model, stock and patched (PROMPT=...)
	$(BIN)/torch-foundry generate --prompt "$(PROMPT)"

# tests/tiers.py says which test is of which tier; tests/README.md, which to run after which change.
test: TIER = quick
test-kernels: TIER = kernels
test-models: TIER = models
test-files: TIER = files
test-metal: TIER = metal
test-others: TIER = kernels models files metal
test-all: TIER = quick kernels models files metal
test-nightly: TIER = nightly
test:  ## what every change should pass, in minutes (WORKERS=, PYTEST_ARGS=)
test-kernels:  ## all shapes, dtypes and formats of the ops
test-models:  ## all families, caches and ways to generate
test-files:  ## hostile files
test-metal:  ## the Metal executor on a mock
test-others:  ## these four
test-all:  ## all of these
test-nightly:  ## seeded faults and removed checks, which tests have to notice; cases much like others
TESTS := test test-kernels test-models test-files test-metal test-others test-all test-nightly
$(TESTS): $(VENV)/.built $(VENV)/.dev
	@.ci/system-packages --optional mock-of-metal=clang
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --tier "$(TIER)" $(PYTEST_ARGS)

# A cluster of three nodes on this machine. Ray is large, so only this target installs it.
test-ray: $(VENV)/.built $(VENV)/.dev  ## replicas on a local Ray cluster (minutes)
	$(BIN)/pip install -q -r requirements-ray.txt
	$(PY) -m pytest tests/serving/test_ray.py $(PYTEST_ARGS)

# guidellm measures a server of the demo model, each answer beside the one alone. It wants an older click than a linter
# does, so it has an environment of its own, which looks up torch and transformers in ours.
test-guidellm: $(VENV)/.built $(VENV)/.dev  ## guidellm's load on a server (minutes)
	$(PY) -m venv build/guidellm
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(echo build/guidellm/lib/python3*/site-packages)/ours.pth
	build/guidellm/bin/pip install -q -r requirements-guidellm.txt
	$(PY) -m pytest -q tests/serving/test_guidellm.py $(PYTEST_ARGS)

# The tests that all models of transformers share, from its source distribution, which pip fetches (10 MB); or those of
# the models' own folders, with those of generate(), from a checkout: HF_TESTS=/path. UPDATE=1 writes docs/hf_tests.md.
test-hf: $(VENV)/.built $(VENV)/.dev  ## transformers' own tests on patched models (FAMILIES=, HF_TESTS=, UPDATE=1)
	$(BIN)/pip install -q -r requirements-hf.txt
	$(PY) -m tools.hf_suite $(if $(UPDATE),--update) $(if $(FAMILIES),--families $(FAMILIES))

# The oldest transformers that pyproject.toml allows stands before the pinned one, in build/oldest. Left out: two tests of
# lists of what the newest has.
OLDEST := $(shell sed -nE 's/.*"transformers>=([0-9.]+)".*/\1/p' pyproject.toml)
test-oldest: $(VENV)/.built $(VENV)/.dev  ## models with the oldest transformers (minutes)
	$(BIN)/pip install -q --no-deps --upgrade --target build/oldest "transformers==$(OLDEST).*"
	PYTHONPATH=build/oldest $(PY) -m pytest -n $(WORKERS) --dist loadfile --tier quick tests/hf tests/generation \
	  tests/kvcache --deselect tests/hf/test_architectures.py::test_classes_of_the_tables_exist \
	  --deselect tests/hf/test_family_list.py::test_every_folder_is_listed_once $(PYTEST_ARGS)

# lm-eval's harness on stock and patched models, over held-out text of the demo model. It is large, so only this target
# installs it.
test-lm-eval: $(VENV)/.built $(VENV)/.dev  ## lm-eval's metrics, stock and patched (minutes)
	$(BIN)/pip install -q -r requirements-lm-eval.txt
	$(PY) -m pytest -q tests/hf/test_lm_eval.py $(PYTEST_ARGS)

# Folders as mlx-lm and mlx-vlm write them, and mlx-lm's own models' logits, on the CPU.
test-mlx: $(VENV)/.built $(VENV)/.dev  ## folders that mlx-lm and mlx-vlm write, of every family
	$(BIN)/pip install -q -r requirements-mlx.txt
	$(BIN)/pip install -q --no-deps -r requirements-mlx-vlm.txt
	$(PY) -m pytest -q --tier models tests/io/test_mlx_lm.py tests/io/test_mlx_vlm.py $(PYTEST_ARGS)

# MLX's and torch's kernels as Apple's compiler made them (LLVM bitcode of their public wheels: 42, 78 and 111 MB, in
# build/air) beside the same source through our front end, or a reference, bit for bit. llvmlite is large, so only this
# target installs it. SAMPLE kernels of each source, KERNELS is a regular expression. Where a wheel can't be had, it says
# so and ends well.
SAMPLE ?= 150
air: $(VENV)/.built $(VENV)/.dev  ## kernels compiled by Apple beside ours (SAMPLE=150, KERNELS=)
	@.ci/system-packages --optional clang-15=clang-15
	$(BIN)/pip install -q -r requirements-air.txt
	$(PY) -m tests.air.compare --sample $(SAMPLE) $(if $(KERNELS),--kernels "$(KERNELS)")
	$(PY) -m pytest -q tests/air $(PYTEST_ARGS)

# This project's own kernels as Apple's compiler made them: METALLIBS is a metallib, or a folder with some, as the
# artifacts of CI's jobs on a Mac are. Ops are run, and what they launch is compared. An empty folder is no fault.
METALLIBS ?= build/mac
air-own: $(VENV)/.built $(VENV)/.dev  ## our kernels of METALLIBS, beside the host executor (KERNELS=)
	$(BIN)/pip install -q -r requirements-air.txt
	$(PY) -m tests.air.compare $(METALLIBS) $(if $(KERNELS),--kernels "$(KERNELS)")

# Every kernel of the grid of attention's features, 55 calls each; takes some minutes.
test-attention: $(VENV)/.built $(VENV)/.dev  ## every kernel of attention (minutes)
	$(PY) tests/ops/attention_grid.py all 55

# On a machine with an NVIDIA GPU, CUDA's toolkit and a torch that has CUDA, whose interpreter is PYTHON: builds in place,
# then op suites, patched models, graphs as CUDA graphs and compute-sanitizer. Needs no network. PARTS="gpu models" runs some.
test-gpu:  ## tests on an NVIDIA GPU, with compute-sanitizer (PARTS=)
	PYTHON=$(PYTHON) tests/cuda/run_gpu.sh $(PARTS)

# The rules that the shaders obey, the linters, types and formats. clang adds the address-space check where it is found.
lint: $(VENV)/.dev  ## linters, types, formats, rules of the shaders, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $$(git ls-files '*.cpp' '*.h' '*.mm' | grep -v '^tests/')
	$(PY) -m torch_foundry.msl --lint -I shaders $$(git ls-files 'shaders/*.metal')
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/mac.yml
	$(BIN)/zizmor -q --offline .github

# The kernel tests under AddressSanitizer and ThreadSanitizer, with the fibers made known to them; then tests of what else
# enters `_C`. It is built under the sanitizer too, beside UBSan; tests/tsan.supp has what is passed over. libstdc++ is
# loaded beside the sanitizer, which otherwise doesn't find its exception handling before torch brings it.
LIBRARY = $(shell $${CXX:-c++} -print-file-name=$(1))
SANITIZED = TORCH_FOUNDRY_SANITIZE=$(1) TORCH_FOUNDRY_EXTENSION=$(CURDIR)/build/$(1)/torch_foundry/_C.abi3.so \
  LD_PRELOAD="$(call LIBRARY,$(2)) $(call LIBRARY,libstdc++.so)"
ASAN = $(call SANITIZED,address,libasan.so) ASAN_OPTIONS=detect_leaks=0,verify_asan_link_order=0 \
  UBSAN_OPTIONS=print_stacktrace=1
TSAN = $(call SANITIZED,thread,libtsan.so) TSAN_OPTIONS=exitcode=66,suppressions=$(CURDIR)/tests/tsan.supp setarch -R
KERNEL_TESTS := tests/ops tests/quant --ignore=tests/ops/test_faults.py -k "not opcheck" -p no:cacheprovider
EXTENSION_TESTS := tests/core/test_sanitized_build.py tests/core/test_graph.py tests/core/test_pipelines.py \
  tests/core/test_compile_shader.py tests/engine/test_threads.py tests/engine/test_after_failures.py \
  tests/generation/test_graphs.py tests/tuning tests/io/test_safetensors_reader.py tests/io/test_finite.py \
  tests/session -k "not at_any_line" --cases 6 -p no:cacheprovider

asan: $(VENV)/.built $(VENV)/.dev build/address/.built  ## kernels, then what enters _C, under AddressSanitizer
	$(ASAN) $(PY) -m pytest $(KERNEL_TESTS) $(PYTEST_ARGS)
	$(ASAN) $(PY) -m pytest $(EXTENSION_TESTS) $(PYTEST_ARGS)

tsan: $(VENV)/.built $(VENV)/.dev build/thread/.built  ## kernels, then what enters _C, under ThreadSanitizer
	$(TSAN) $(PY) -m pytest $(KERNEL_TESTS) $(PYTEST_ARGS)
	$(TSAN) $(PY) -m pytest $(EXTENSION_TESTS) $(PYTEST_ARGS)

build/%/.built: $(VENV)/.run $(SOURCES)
	@mkdir -p build/$*
	@echo "building the extension for -fsanitize=$* (minutes; build/$*/build.log has the details)"
	@TORCH_FOUNDRY_SANITIZE=$* $(PY) setup.py -q build_ext >build/$*/build.log 2>&1 || { cat build/$*/build.log; exit 1; }
	@touch $@

# Files that are not what they should be, through the readers: mutants of ours, the safetensors header under sanitizers,
# a minute of chat templates made at random, then, where atheris can be installed, what coverage leads to. FUZZ is how many of each.
FUZZ ?= 200000
fuzz: $(VENV)/.built $(VENV)/.dev  ## hostile files through the loaders (FUZZ=200000)
	$(PY) -m tests.io.fuzz.run --inputs $(FUZZ)
	mkdir -p build/fuzz && $(PY) -m tests.io.fuzz.header build/fuzz $(FUZZ)
	$(PY) -W ignore -m tests.text.generated 0 60
	if $(PY) -m pip install -q -r tests/io/fuzz/requirements.txt; then for kind in gguf safetensors packs; do \
	  $(PY) -m tests.io.fuzz.guided $$kind -runs=$(FUZZ) -max_len=4096 -artifact_prefix=build/fuzz/ || exit 1; \
	done; else echo "no atheris for this interpreter: mutants alone"; fi

# Compiles and links the extension for macOS against torch's macOS wheels, which it downloads (100 MB each) to
# build/macos: `make check-macos TORCH="2.11 2.15"`, by default all that are supported; the host executor's runtime and
# kernels too. Then the tests that it can fail.
check-macos: $(VENV)/.dev  ## compile and link for macOS, on Linux (TORCH="2.11 2.15")
	.ci/system-packages clang++-19=clang-19 ld64.lld-19=lld-19 llvm-nm-19=llvm-19 libcxx=libc++-19-dev
	$(PY) tests/metal/macos/check.py $(TORCH)
	$(PY) -m pytest -q tests/metal/test_macos_check.py tests/metal/test_macos_host.py

# What every kernel costs as machine code of an M1 (registers, spills, cycles), by Mesa's open-source compiler, which is
# built from Debian's source package (minutes, once, in build/agx); where that can't be had, it says so and ends well.
# A kernel that is worse than benchmarks/records/agx says fails: UPDATE=1 writes the record and its table. KERNELS is a
# regular expression: rows of these alone. Then some ops run as that machine code, on an emulator (RUN: those alone, by
# a regular expression); UPDATE=1 writes what tests run of it, too.
agx: $(VENV)/.built  ## kernels as machine code of an M1 (KERNELS=, RUN=, UPDATE=1)
	@.ci/system-packages --optional clang-15=clang-15 opt-15=llvm-15 llvm-spirv-15=llvm-spirv-15 g++=g++ ninja=ninja-build \
	  bison=bison flex=flex pkg-config=pkg-config xz=xz-utils zlib.h=zlib1g-dev libdrm/drm.h=libdrm-dev
	$(if $(RUN),,$(PY) -m tools.agx $(if $(UPDATE),--update) $(if $(KERNELS),--kernels "$(KERNELS)"))
	$(if $(KERNELS),,$(PY) -m tools.agx --run "$(RUN)" $(if $(UPDATE),--update))

# Ops at the sizes of their tests and the demo model, by pytest-benchmark. The shapes of real models: benchmarks/bench_*.py.
bench: $(VENV)/.built $(VENV)/.dev  ## each op beside stock torch, on the CPU
	$(PY) -m pytest benchmarks --benchmark-only --benchmark-columns=min,median,rounds --benchmark-sort=name $(PYTEST_ARGS)

# As test-gpu, for the benchmarks: builds in place, then bench_ops and bench_e2e; records, tables and plots in build/bench.
# Needs no network.
bench-gpu:  ## ops and whole models on an NVIDIA GPU
	PYTHON=$(PYTHON) benchmarks/run_gpu.sh

results: $(VENV)/.built $(VENV)/.dev  ## benchmarks/RESULTS.md from benchmarks/records
	$(PY) -m benchmarks.results

build: $(VENV)/.built  ## the extension and the common kernels, in place

format: $(VENV)/.dev  ## format Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h' '*.mm')

clean:  ## remove everything that was built
	rm -rf $(VENV) build torch_foundry/_built torch_foundry/_C*.so *.egg-info

$(VENV)/.run: requirements.txt
	.ci/system-packages python-venv=python3-venv c++=g++ python-headers=python3-dev
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.run
	$(PY) -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# The second command only records the package and its console script; the first has built everything in place.
$(VENV)/.built: $(VENV)/.run $(SOURCES)
	@mkdir -p build
	@echo "building the extension and the common kernels (minutes; build/build.log has the details)"
	@$(PY) setup.py -q build_ext --inplace >build/build.log 2>&1 || { cat build/build.log; exit 1; }
	@TORCH_FOUNDRY_SKIP_EXTENSION=1 $(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
