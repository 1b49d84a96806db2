#!/usr/bin/env bash
# The benchmarks, for a bare machine with torch, its CUDA toolkit, matplotlib and an NVIDIA GPU; no network is needed.
#   benchmarks/run_gpu.sh [build] [ops] [e2e]      all three by default
# PYTHON names the interpreter that has torch, OUT the folder for records, tables and plots, COMMIT what to record where
# there is no git; OPS_ARGS and E2E_ARGS replace the options of bench_ops and bench_e2e below.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/bench}
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export TORCH_FOUNDRY_CACHE=${TORCH_FOUNDRY_CACHE:-$PWD/build/bench/cache}
common=(--device cuda --out "$OUT" ${COMMIT:+--commit "$COMMIT"})
OPS_ARGS=${OPS_ARGS:---rows 1,4,512 --layouts 2d --formats f16,f32,q8_0,q4_0}
E2E_ARGS=${E2E_ARGS:---models qwen2.5-0.5b,llama-3-8b --formats f16,q8_0,q4_0 --cells 1x128,8x128,1x2048 --iterations 3}
parts=("$@")
failed=0

wanted() { [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $1 "* ]]; }

step() { # name, then a command; its output goes to a file and is shown
  local name=$1 started=$SECONDS
  shift
  "$@" 2>"$OUT/$name.log" | tee "$OUT/$name.txt"
  if [[ ${PIPESTATUS[0]} -eq 0 ]]; then
    echo "ok    $name, $((SECONDS - started)) s"
  else
    failed=1
    echo "FAIL  $name, $((SECONDS - started)) s"
    tail -25 "$OUT/$name.log" | cut -c1-240
  fi
}

if wanted build; then # without the host's kernels: none of them is run here
  TORCH_FOUNDRY_PREBUILD=0 step build sh -c '"$0" setup.py -q build_ext --inplace >&2' "$PYTHON"
  [[ $failed -eq 0 ]] || exit 1
  # The kernels that all models use, compiled side by side; each of the others when it is first asked for.
  step kernels "$PYTHON" -c 'from concurrent.futures import ThreadPoolExecutor as Pool
from torch_foundry.aot import prebuild
with Pool() as pool:
    for job in [pool.submit(call) for _, call in prebuild.calls("cuda")]:
        job.result()'
fi
# shellcheck disable=SC2086  # lists of options
if wanted ops; then step ops "$PYTHON" -m benchmarks.bench_ops "${common[@]}" $OPS_ARGS; fi
# shellcheck disable=SC2086
if wanted e2e; then step e2e "$PYTHON" -m benchmarks.bench_e2e "${common[@]}" $E2E_ARGS; fi
exit $failed
