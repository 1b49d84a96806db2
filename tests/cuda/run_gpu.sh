#!/usr/bin/env bash
# The GPU's part of the tests, for a bare machine with torch, its CUDA toolkit and an NVIDIA GPU; no network is needed.
#   tests/cuda/run_gpu.sh [build] [tests] [sanitizers]      all three by default
# PYTHON names the interpreter that has torch, OUT a folder for the logs.
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export TORCH_FOUNDRY_CACHE=${TORCH_FOUNDRY_CACHE:-$PWD/build/gpu/cache}
failed=()

step() { # name, then a command whose output goes to a log; its last lines are shown
  local name=$1 log
  shift
  log=$OUT/${name//[ \/]/_}.log
  if "$@" >"$log" 2>&1; then
    echo "ok    $name: $(grep -E '(passed|cases|ERROR SUMMARY)' "$log" | tail -2 | tr '\n' ' ' | cut -c1-160)"
  else
    failed+=("$name")
    echo "FAIL  $name"
    grep -E '^(E  |FAILED|ERROR)|[Ee]rror|passed|failed' "$log" | cut -c1-240 | tail -${LINES_SHOWN:-25}
  fi
}

wanted() { [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $1 "* ]]; }
parts=("$@")

if wanted build; then
  step build "$PYTHON" setup.py -q build_ext --inplace
  [[ ${#failed[@]} -eq 0 ]] || exit 1
fi

if wanted tests; then
  pytest=("$PYTHON" -m pytest -q --tb=short -p no:cacheprovider)
  if "$PYTHON" -c "import xdist" 2>/dev/null; then # the GPU waits for Python: a process a core, each with one thread
    pytest+=(-n "$(nproc)")
    export OMP_NUM_THREADS=1
  fi
  step gpu "${pytest[@]}" -s tests/cuda/on_gpu.py
  for suite in tests/patch/test_families.py tests/patch/test_running.py; do # models that live on the GPU
    # Not here: assisted decoding of Gemma 2, with which stock transformers 5.17 fails on torch 2.11.
    TORCH_FOUNDRY_TEST_DEVICE=cuda step "$suite" "${pytest[@]}" "$suite" -k "not gemma2-assisted"
  done
  # Ops on copies of what CPU tensors hold, at several times a launch: not for whole models.
  suites=(tests/ops tests/quant tests/sampling tests/runtime/test_compile_shader.py tests/kvcache)
  for suite in "${suites[@]}"; do
    # Not here: faults, which are in the shaders' text; opcheck, which the CPU has passed; what asks the host's runtime
    # (barrier divergence, ids out of range).
    step "$suite" "${pytest[@]}" -p tests.on_device --on-device cuda "$suite" --ignore-glob="*/test_faults.py" \
      --deselect tests/ops/test_embedding.py::test_bad_inputs \
      -k "not opcheck and not divergence and not compile_errors"
  done
fi

# compute-sanitizer over the kernel tests, all tools side by side; only our kernels are looked at. To synccheck threads
# that have returned are no fault: barriers that not all threads reach are found by the checked build (on_gpu.py).
sanitize() { # tool, case, pattern that must be found (empty: nothing may be)
  local tool=$1 case=$2 pattern=$3 log=$OUT/sanitizer_$1_${2// /_}.log
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --kernel-name kernel_name=msl_entry --print-limit 20 \
    "$PYTHON" tests/cuda/sanitized.py $case >"$log" 2>&1
  if [[ -z $pattern ]]; then
    grep -Eq 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" && grep -q ' cases$' "$log"
  else
    grep -Eq "$pattern" "$log"
  fi
}

if wanted sanitizers; then
  if ! command -v compute-sanitizer >/dev/null; then
    echo "FAIL  sanitizers: compute-sanitizer is not on the PATH"
    failed+=(sanitizers)
  else
    declare -A jobs
    run() { sanitize "$@" & jobs["$1 $2"]=$!; }
    for tool in memcheck racecheck initcheck synccheck; do run $tool "ops ${SANITIZER_CASES:-1000}" ""; done
    run memcheck outside 'Invalid __global__ write of size 4'
    run racecheck race 'Race reported|[Hh]azard'
    run initcheck unwritten 'Uninitialized __global__ memory read'
    for name in "${!jobs[@]}"; do
      if wait "${jobs[$name]}"; then
        echo "ok    $name"
      else
        failed+=("$name")
        echo "FAIL  $name"
        grep -vE '^=* *(Host Frame|Saved host)' "$OUT/sanitizer_${name// /_}.log" | grep -E '=====|rror' | cut -c1-200 | tail -12
      fi
    done
  fi
fi

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "${#failed[@]} failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
