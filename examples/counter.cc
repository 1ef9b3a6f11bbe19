// A mesh of four counters: call all of them, kill one, await the others.
//
//   bazel run //examples:counter                     in Shoal's workspace, on a private cluster, which ends with it
//   cmake -B build && cmake --build build            in a project of `shoal cpp new counter`
//   build/counter
//   SHOAL_ADDRESS=auto counter                       on the running cluster (shoal start --head)
#include <cstdio>
#include <string>

#include "actors/api/shoal.h"

// An actor is an object of an ordinary class that lists its methods. Each actor runs in a process of its own.
class Counter {
 public:
  Counter(shoal::Place place, int start) : place_(place), value_(start) {}

  int add(int n) { return value_ += n * (place_.rank.value + 1); }
  int value() const { return value_; }
  shoal::Result<int> divide(int by) const {
    if (by == 0) return shoal::fail(shoal::invalid_argument("a counter is not divided by zero").with_hint("pass another number"));
    return value_ / by;
  }

  static constexpr auto methods = shoal::methods(shoal::constructor<shoal::Place, int>, &Counter::add, &Counter::value, &Counter::divide);

 private:
  shoal::Place place_;
  int value_;
};

// Adds up the counters' results, which it awaits in turn. All counters compute meanwhile.
shoal::Task<int> total(shoal::Mesh<Counter> counters) {
  int sum = 0;
  for (const auto& counter : counters) {
    SHOAL_CO_TRY(const int value, co_await counter.call(&Counter::value).async());
    sum += value;
  }
  co_return sum;
}

shoal::Result<void> run(shoal::Context& context) {
  SHOAL_TRY(const auto counters, context.spawn_mesh<Counter>(4, {}, 100));

  SHOAL_TRY(const auto values, counters.call_all(&Counter::add, 5).get());
  for (std::size_t rank = 0; rank < values.size(); ++rank) std::printf("rank %zu counts %d\n", rank, values[rank]);

  // An error is a value with its cause and its origin.
  const auto refused = counters[1].call(&Counter::divide, 0).get();
  std::printf("as intended: %s\n", refused.error().to_string().c_str());

  SHOAL_OK(context.kill(counters[3]));
  const auto lost = counters.call_all(&Counter::value).get();
  std::printf("as intended: %s\n", lost.error().to_string().c_str());

  SHOAL_TRY(const int sum, context.run(total(counters.slice(0, 3))));
  std::printf("the others have %d\n", sum);
  return {};
}

int main(int argc, char** argv) { return shoal::main<Counter>(argc, argv, run); }
