#!/bin/bash
# Collects in tests/gpu/carried what run.sh needs on a machine without network, compiler and Debian's libraries: the wheel, the binaries
# without symbols, and their libraries. Prints the folder's size. Builds first.
set -euo pipefail
cd "$(dirname "$0")/../.."
./dev wheel
bazel build //tests/gpu:device_check //fsdp/kernels/cuda:cuda_test
out=tests/gpu/carried
rm -rf $out
mkdir -p $out/lib
cp "$(ls -t dist/shoal-*.whl | head -1)" $out/
for binary in tests/gpu/device_check fsdp/kernels/cuda/cuda_test; do
  strip -o "$out/$(basename $binary)" "bazel-bin/$binary"
  # glibc and the loader are the machine's own.
  ldd "bazel-bin/$binary" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | grep -Ev '/(libc|libm|libpthread|libdl|librt|ld-linux-x86-64)\.so' |
    xargs -r -I{} cp -Ln {} $out/lib/
done
du -sh $out
