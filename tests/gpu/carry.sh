#!/bin/bash
# Collects in tests/gpu/carried what run.sh needs on a machine without network, compiler and Debian's libraries: Shoal's wheel and those that
# it requires besides torch, the binaries without symbols, and their libraries. Prints the folder's size. Builds first.
# carry.sh [3.12]: the version of the machine's Python.
set -euo pipefail
cd "$(dirname "$0")/../.."
./dev wheel
bazel build //tests/gpu:device_check //fsdp/kernels/cuda:cuda_test
out=tests/gpu/carried
rm -rf $out
mkdir -p $out/lib
wheel=$(ls -t dist/shoal-*.whl | head -1)
.venv/bin/python -m pip download --quiet --dest $out --python-version "${1:-3.12}" --only-binary :all: "$wheel" safetensors
for binary in tests/gpu/device_check fsdp/kernels/cuda/cuda_test; do
  strip -o "$out/$(basename $binary)" "bazel-bin/$binary"
  # glibc and the loader are the machine's own.
  ldd "bazel-bin/$binary" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | grep -Ev '/(libc|libm|libpthread|libdl|librt|ld-linux-x86-64)\.so' |
    xargs -r -I{} cp -Ln {} $out/lib/
done
du -sh $out
