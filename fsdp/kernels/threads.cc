#include "fsdp/kernels/threads.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <system_error>
#include <vector>

#include "runtime/loop/side_thread.h"

namespace shoal::fsdp {

namespace {
constexpr std::size_t kNumelPerThread = 256 * 1024;
constexpr std::size_t kAlignment = 64;

// GNU's OpenMP entry point: calls fn(data) in each of its threads, the caller's included.
using Parallel = void (*)(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags);
Parallel openmp() {
  static const auto found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

void in_side_threads(int parts, const std::function<void(int)>& piece) {
  std::vector<std::unique_ptr<runtime::SideThread>> threads;
  int part = 1;
  try {
    for (; part < parts; ++part) threads.push_back(std::make_unique<runtime::SideThread>([&piece, part] { piece(part); }));
  } catch (const std::system_error&) {  // no more threads available in the process or machine
    for (; part < parts; ++part) piece(part);
  }
  piece(0);
}

}  // namespace

Pieces::Pieces(std::size_t numel, int num_threads)
    : numel(numel),
      count(std::clamp(num_threads, 1,
                       static_cast<int>(std::min<std::size_t>(1 + (numel - std::min(numel, std::size_t{1})) / kNumelPerThread, 256)))) {}

std::size_t Pieces::begin(int part) const {
  const std::size_t share = (numel / static_cast<std::size_t>(count) + kAlignment) / kAlignment * kAlignment;
  return std::min(numel, static_cast<std::size_t>(part) * share);
}

int over_threads(std::size_t numel, int num_threads, const std::function<void(std::size_t, std::size_t, int)>& work) {
  const Pieces pieces(numel, num_threads);
  const int parts = pieces.count;
  const auto piece = [&](int part) { work(pieces.begin(part), pieces.end(part), part); };
  if (parts == 1) {
    piece(0);
  } else if (const auto parallel = openmp()) {
    std::atomic<int> next{0};
    const std::function<void()> some = [&] {
      for (int part = next++; part < parts; part = next++) piece(part);
    };
    parallel([](void* f) { (*static_cast<const std::function<void()>*>(f))(); }, const_cast<std::function<void()>*>(&some),
             static_cast<unsigned>(parts), 0);
  } else {
    in_side_threads(parts, piece);
  }
  return parts;
}

}  // namespace shoal::fsdp
