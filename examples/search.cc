// Searches for numbers with long Collatz sequences, in several processes. Each yields its finds as a stream, which is cancelled when there
// are enough. The evaluation of the finds has two results, of which one is passed on.
//
//   bazel run //examples:search          on a private cluster, which ends with it
//   SHOAL_ADDRESS=auto search            on the running one (shoal start --head)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "actors/api/shoal.h"

struct Find {
  std::uint64_t number = 0;
  int steps = 0;
  static constexpr auto fields = shoal::fields(&Find::number, &Find::steps);
};

int steps_from(std::uint64_t n) {
  int steps = 0;
  for (; n != 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
  return steps;
}

// Yields each number with a longer sequence than all before it, among every stride-th from the first on. The loop is endless, so it polls
// for cancellation.
shoal::Generator<Find> records(std::uint64_t first, std::uint64_t stride) {
  int most = 0;
  for (std::uint64_t n = first; !shoal::is_cancelled(); n += stride) {
    if (const int steps = steps_from(n); steps > most) {
      most = steps;
      co_yield Find{n, steps};
    }
  }
}

// A tuple is several results: the longest find, and the total steps of all finds.
std::tuple<Find, int> judged(const std::vector<shoal::Future<Find>>& finds) {
  Find longest;
  int all = 0;
  for (const auto& future : finds) {  // futures of the finds; get() fetches the value
    const auto find = future.get();
    if (!find) continue;
    all += find->steps;
    if (find->steps > longest.steps) longest = *find;
  }
  return {longest, all};
}

std::string described(const Find& find) { return std::to_string(find.number) + " takes " + std::to_string(find.steps) + " steps"; }

shoal::Result<void> run(shoal::Context& context) {
  std::vector<shoal::Stream<Find>> searches;
  for (const std::uint64_t first : {1, 2, 3}) searches.push_back(context.remote<&records>({.num_cpus = 0.25})(first, 3));

  std::vector<shoal::Future<Find>> finds;
  for (auto& search : searches) {
    for (const auto& find : search) {  // in the order in which the finds arrive
      finds.push_back(find);
      if (finds.size() % 5 == 0) break;
    }
    SHOAL_OK(shoal::cancel(search));
  }

  const auto [longest, all] = context.remote<&judged>({.num_cpus = 0.25})(finds).results();
  SHOAL_TRY(const std::string sentence, context.remote<&described>({.num_cpus = 0.25})(longest).get());
  SHOAL_TRY(const int steps, all.get());
  std::printf("of %zu finds with %d steps the longest: %s\n", finds.size(), steps, sentence.c_str());
  return {};
}

int main(int argc, char** argv) { return shoal::main<shoal::Functions<&records, &judged, &described>>(argc, argv, run); }
