// Calls per second of a C++ driver on one actor of the same host: one after the other, and many at once. A line of JSON per measurement:
// {"name": .., "per_second": [a sample per round]}. `calls NAME ROUNDS` makes only the measurement NAME. Asserts nothing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "actors/api/shoal.h"

class Echo {
 public:
  int plus_one(int n) const { return n + 1; }
  shoal::Bytes same(shoal::Bytes bytes) const { return bytes; }
  static constexpr auto methods = shoal::methods(&Echo::plus_one, &Echo::same);
};

namespace {

using Steady = std::chrono::steady_clock;

std::string_view only;
int rounds = 7;

// Prints the calls per second of `round`, which makes `calls` calls.
template <class Round>
shoal::Result<void> measure(const char* what, int calls, Round&& round) {
  if (!only.empty() && only != what) return {};
  SHOAL_OK(round());  // warms up
  std::printf("{\"name\": \"%s\", \"per_second\": [", what);
  for (int i = 0; i < rounds; ++i) {
    const auto start = Steady::now();
    SHOAL_OK(round());
    std::printf("%s%.1f", i > 0 ? ", " : "", calls / std::chrono::duration<double>(Steady::now() - start).count());
  }
  std::printf("]}\n");
  return {};
}

shoal::Result<void> run(shoal::Context& context) {
  SHOAL_TRY(const auto echo, context.spawn<Echo>({.num_cpus = 1}));
  SHOAL_OK(echo.constructed().get());
  SHOAL_OK(measure("call", 5'000, [&]() -> shoal::Result<void> {
    for (int i = 0; i < 5'000; ++i) SHOAL_OK(echo.call(&Echo::plus_one, i).get());
    return {};
  }));
  SHOAL_OK(measure("pipelined", 10'000, [&]() -> shoal::Result<void> {
    std::vector<shoal::Future<int>> futures;
    for (int i = 0; i < 10'000; ++i) futures.push_back(echo.call(&Echo::plus_one, i));
    for (const auto& f : futures) SHOAL_OK(f.get());
    return {};
  }));
  const shoal::Bytes mebibyte(1 << 20);
  SHOAL_OK(measure("1 MiB", 200, [&]() -> shoal::Result<void> {
    for (int i = 0; i < 200; ++i) SHOAL_OK(echo.call(&Echo::same, mebibyte).get());
    return {};
  }));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  if (argc > 2) rounds = std::atoi(argv[2]);
  return shoal::main<Echo>(argc, argv, run);
}
