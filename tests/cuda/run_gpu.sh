#!/usr/bin/env bash
# The GPU's part of the tests, for a bare machine with torch, its CUDA toolkit and an NVIDIA GPU; no network is needed.
#   tests/cuda/run_gpu.sh [PART ...]      build, gpu, models, ops, others, sanitizers; all of them by default
# Each part can run by itself, after build; memcheck, racecheck, initcheck and synccheck are those of sanitizers.
# PYTHON names the interpreter that has torch, OUT a folder for the logs, SANITIZER_CASES how many cases of an op.
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
    grep -E '^SKIPPED' "$log" | cut -c1-160
  else
    failed+=("$name")
    echo "FAIL  $name"
    grep -E '^(E  |FAILED|ERROR)|[Ee]rror|passed|failed' "$log" | cut -c1-240 | tail -${LINES_SHOWN:-25}
  fi
}

wanted() { [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $1 "* ]]; }
parts=("$@")
for part in "${parts[@]}"; do
  case $part in
    build | gpu | models | ops | others | sanitizers | memcheck | racecheck | initcheck | synccheck) ;;
    *) echo "no part is called $part: see the top of $0" && exit 2 ;;
  esac
done

if wanted build; then
  step build "$PYTHON" setup.py -q build_ext --inplace
  [[ ${#failed[@]} -eq 0 ]] || exit 1
fi

missing=$("$PYTHON" - <<'END'
from importlib.util import find_spec
print(*[name for name in ("pytest", "transformers", "numpy", "gguf", "accelerate") if find_spec(name) is None])
END
)
[[ -z $missing ]] || echo "not installed: $missing (what needs them is skipped, or fails)"

pytest=("$PYTHON" -m pytest -q --tb=short -p no:cacheprovider)
if "$PYTHON" -c "import xdist" 2>/dev/null; then # the GPU waits for Python: a process a core, each with one thread
  pytest+=(-n "$(nproc)")
  export OMP_NUM_THREADS=1
fi

if wanted gpu; then
  step gpu "${pytest[@]}" -s tests/cuda/on_gpu.py
fi

if wanted models; then # models that live on the GPU
  export TORCH_FOUNDRY_TEST_DEVICE=cuda
  # Not here: assisted decoding of Gemma 2 and gpt-oss, with which stock transformers 5.17 fails.
  step tests/hf/test_families.py "${pytest[@]}" tests/hf/test_families.py -k "not gemma2-assisted and not gpt_oss-assisted"
  step tests/hf/test_running.py "${pytest[@]}" tests/hf/test_running.py
  step "drafts at the end of a cache" "${pytest[@]}" tests/kvcache/test_formats.py -k rejected_drafts
  unset TORCH_FOUNDRY_TEST_DEVICE
fi

# Ops on copies of what CPU tensors hold, at several times a launch: not for whole models.
on_copies() { # suites
  local suite
  for suite; do
    # Not here: faults, which are in the shaders' text; opcheck, which the CPU has passed; what asks the host's runtime
    # (barrier divergence, ids out of range) or its compiler (arguments left unread); what PTX leaves to the machine
    # (division by zero); drafts behind a cache's limit, which are a graph's (see models), as are captured steps; guard
    # bytes and routes of the host.
    step "$suite" "${pytest[@]}" -p tests.on_device --on-device cuda "$suite" --ignore-glob="*/test_faults.py" \
      --ignore-glob="*/test_guarded.py" \
      --deselect tests/ops/test_embedding.py::test_bad_inputs \
      -k "not opcheck and not divergence and not compile_errors and not rejected_drafts and not leaves_unread and \
        not division_by_zero and not captured_steps_take_it and not which_products_go_this_way"
  done
}
# Products as matrices, which round weights, have a suite that turns them on; the others hold what does not.
if wanted ops; then TORCH_FOUNDRY_MATRIX_ROWS=0 on_copies tests/ops; fi
if wanted others; then on_copies tests/quant tests/sampling tests/core/test_compile_shader.py tests/kvcache; fi

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

tools=()
for tool in memcheck racecheck initcheck synccheck; do
  if wanted sanitizers || wanted $tool; then tools+=($tool); fi
done
if [[ ${#tools[@]} -gt 0 ]]; then
  if ! command -v compute-sanitizer >/dev/null; then
    echo "FAIL  sanitizers: compute-sanitizer is not on the PATH"
    failed+=(sanitizers)
  else
    declare -A jobs
    run() { sanitize "$@" & jobs["$1 $2"]=$!; }
    for tool in "${tools[@]}"; do
      run $tool "ops ${SANITIZER_CASES:-1000}" ""
      case $tool in # a fault that the tool must find
        memcheck) run $tool outside 'Invalid __global__ write of size 4' ;;
        racecheck) run $tool race 'Race reported|[Hh]azard' ;;
        initcheck) run $tool unwritten 'Uninitialized __global__ memory read' ;;
      esac
    done
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
