#!/bin/bash
# Tests on a CUDA device, in less than 8 minutes: config T at world 1 with Shoal, torch's FSDP2 and plain PyTorch; config T on 1, 2 and 4
# ranks that share the device, through Shoal's own groups and fused AdamW; a GPT of 1.3 billion parameters beside FSDP2; then Shoal's own
# CUDA code: kernels beside those of the CPU, NCCL with one rank, copies between 2 and 4 processes. The last need
# `bazel build //tests/gpu:device_check //fsdp/kernels/cuda:cuda_test`, the others Shoal, installed or built, and a torch with CUDA. Without a
# device the script prints a sentence and exits with 2.
# $PYTHON: the interpreter (default: .venv's, else python3).
set -uo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3) || { echo "tests/gpu: no Python here"; exit 2; }
if ! "$python" -c "import shoal" 2>/dev/null; then
  wheel=$(ls -t "$root"/dist/shoal-*.whl 2>/dev/null | head -1)
  [ -n "$wheel" ] || { echo "tests/gpu: Shoal is not installed for $python; run ./dev build, or ./dev wheel and bring dist/"; exit 2; }
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-deps --target "$site" "$wheel" || exit 2
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$root/tests/bench${PYTHONPATH:+:$PYTHONPATH}
status=0
for program in config_t.py ranks.py beside_fsdp2.py; do
  "$python" $program "$@" || { code=$?; [ $code = 2 ] && exit 2; status=1; }
done
# built PATH: a binary, in Bazel's runfiles or in its output folder.
built() { for place in "$root/$1" "$root/bazel-bin/$1"; do [ -x "$place" ] && echo "$place" && return; done; }
fake=
[[ "$*" == *"--device cpu"* ]] && fake=--fake
if check=$(built tests/gpu/device_check); then "$check" $fake || status=1; else echo "tests/gpu: device_check is not built; skipped"; fi
if [ -z "$fake" ]; then
  if kernels=$(built fsdp/kernels/cuda/cuda_test); then SHOAL_TEST_GPU=1 "$kernels" || status=1; else echo "tests/gpu: cuda_test is not built; skipped"; fi
fi
exit $status
