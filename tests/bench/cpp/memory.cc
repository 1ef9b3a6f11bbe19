// Memory bandwidth, and the throughput of the engine's kernels: a += b, casts and sums, on arrays larger than any cache.
//
// memory THREADS [NUMEL] prints one JSON line per figure: {"name", "mb_per_second": bytes read and written, one sample per repetition}.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/kernels/kernels.h"
#include "fsdp/kernels/threads.h"

namespace {

using shoal::DType;

void accumulate(float* __restrict a, const float* __restrict b, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) a[i] += b[i];
}

void figure(const char* name, double bytes, const std::function<void()>& run) {
  run();  // touches every page
  std::printf("{\"name\": \"%s\", \"mb_per_second\": [", name);
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s%.1f", i == 0 ? "" : ", ", bytes / 1e6 / seconds);
  }
  std::printf("]}\n");
}

struct Free {
  void operator()(float* p) const { std::free(p); }
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::size_t numel = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 32u << 20;
  const auto make = [&](float value) {
    std::unique_ptr<float, Free> out(static_cast<float*>(std::aligned_alloc(4096, (numel * 4 + 4095) / 4096 * 4096)));
    for (std::size_t i = 0; i < numel; ++i) out.get()[i] = value;
    return out;
  };
  const auto a = make(0), b = make(1);
  const auto parallel = [&](const std::function<void(std::size_t, std::size_t)>& work) {
    shoal::fsdp::over_threads(numel, threads, [&](std::size_t begin, std::size_t end, int) { work(begin, end - begin); });
  };
  const auto n = static_cast<double>(numel);
  auto* to = reinterpret_cast<std::byte*>(a.get());
  const auto* from = reinterpret_cast<const std::byte*>(b.get());
  figure("a += b", 12 * n, [&] { parallel([&](std::size_t i, std::size_t count) { accumulate(a.get() + i, b.get() + i, count); }); });
  // 8 bytes per number: reads 4, and reads 2 of the destination's before it overwrites them
  figure("cast of float32 to bfloat16", 8 * n, [&] {
    parallel(
        [&](std::size_t i, std::size_t count) { shoal::fsdp::cast(DType::kFloat32, from + 4 * i, DType::kBFloat16, to + 2 * i, count); });
  });
  figure("sum of bfloat16 in float32", 12 * n, [&] {  // two sources, added to the destination
    parallel([&](std::size_t i, std::size_t count) {
      const shoal::fsdp::Source sources[] = {{from + 2 * i, DType::kBFloat16, 0}, {from + 2 * (numel + i), DType::kBFloat16, 1}};
      shoal::fsdp::reduce(sources, 0.5, true, DType::kFloat32, to + 4 * i, count);
    });
  });
}
