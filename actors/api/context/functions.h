// Remote functions on the caller's side: ordinary functions that run in worker processes of this one.
//
//   double mean(const std::vector<double>& xs);
//   shoal::main<shoal::Functions<&mean>, Counter>(argc, argv, run);
//   ...
//   context.remote<&mean>({.num_cpus = 2})(numbers).get()
//
// actors/session/tasks/task_pool.h assigns tasks to workers and retries them. This file starts and ends workers, in a thread of its own.
// Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "actors/api/context/handle.h"
#include "actors/api/context/launch.h"
#include "actors/api/context/options.h"

namespace shoal::actors {
class TaskPool;
}

namespace shoal::actors::api {

template <class Pointer>
struct FunctionSignature;
template <class R, class... P>
struct FunctionSignature<R (*)(P...)> {
  using Return = R;
  using Params = List<P...>;
};
template <class R, class... P>
struct FunctionSignature<R (*)(P...) noexcept> : FunctionSignature<R (*)(P...)> {};

// The function's name with its namespaces, by which workers find it.
template <auto function>
constexpr std::string_view function_name() {
  std::string_view name = argument_in(pretty_pointer<function>());
  if (name.starts_with('&')) name.remove_prefix(1);
  return name;
}

// The class of actors that run functions, in a worker's first call.
inline constexpr std::string_view kFunctionClass = "shoal::functions";

class FunctionPools {
 public:
  struct Options {
    std::chrono::milliseconds idle{2000};          // an idle worker ends after this time
    std::chrono::milliseconds room_interval{100};  // interval of checks for room in a full cluster
    std::chrono::milliseconds hand_over;           // time for the answer of a worker that shall end: the actors that it leaves
    // A worker whose calls are still open after this time answers that it is needed; it is asked again later.
    std::chrono::milliseconds needed;
  };
  using Names = std::set<std::string, std::less<>>;
  // `known`: the functions of this program's workers.
  FunctionPools(Hub& hub, const Launcher& launcher, const Names& known, Options options)
      : hub_(hub), launcher_(launcher), known_(known), options_(options) {}
  ~FunctionPools();  // calls without an answer fail as Cancelled

  Hub& hub() { return hub_; }
  // Queues a call. `name` must outlive the process.
  Reply submit(std::string_view name, const FunctionOptions& options, Result<Encoded> args);
  // The answer of this worker of functions to kHandOver, by which its keeper requests the actors that it leaves. `request` is the time for
  // the answer, in ms. The answer has a flag and a list. The flag is false while calls of this worker are open: then the keeper requests
  // again. The list has the actors that this worker has made or taken over.
  Result<Value> hand_over(const Value& request);

 private:
  struct Pool {
    Resources resources;
    FunctionOptions options;
    std::shared_ptr<TaskPool> tasks;
  };
  Result<std::shared_ptr<Pool>> pool_for(const FunctionOptions& options);
  Result<void> grow(Pool& pool);
  // Starts and ends workers as the pool wants. Returns true if a start waits for room in the cluster.
  bool attend(Pool& pool);
  std::size_t room_for(const Pool& pool, std::size_t workers, bool starting);
  // Ends an idle worker. A worker that has run is first asked which actors it leaves; this function does not wait for the answer.
  void end(ActorId worker);
  // Ends workers that have answered which actors they leave behind, and adopts these. A worker without an answer is killed, and its actors
  // with it, since their handles could not be counted. While the head is away, workers stay in leaving_.
  void see_off();
  void lend();
  // Ends all idle workers, and waits for their answers until the time `until`. Returns true if all have ended.
  bool see_off_all(std::chrono::steady_clock::time_point until);
  void run();

  Hub& hub_;
  const Launcher& launcher_;
  const Names& known_;
  const Options options_;
  std::mutex pools_mutex_;
  std::map<std::string, std::shared_ptr<Pool>> pools_;  // by the properties of their workers (key_of)
  std::mutex mutex_;                                    // guards changed_, wanted_ and ending_; handlers of the loop take it
  std::condition_variable changed_;
  bool wanted_ = false, ending_ = false;
  std::mutex retiring_mutex_;  // guards the members from constructed_ to checked_at_
  struct Leaving {
    ActorId worker;
    ValueFuture words;
    std::chrono::steady_clock::time_point until;
    enum class How : std::uint8_t { kRequested, kRetired, kKilled } how = How::kRequested;
    std::size_t adopted = 0;  // number of its actors adopted so far
  };
  void request_last_words(Leaving& leaving);
  Result<void> adopt(Leaving& leaving);
  std::map<ActorId, ValueFuture> constructed_;
  std::atomic<bool> lent_ = false;  // this process's CPUs are lent for good
  std::size_t sweep_at_ = 64;
  std::vector<Leaving> leaving_;
  std::chrono::steady_clock::time_point again_at_;  // time before which ending workers is not tried again
  std::chrono::steady_clock::time_point checked_at_ = std::chrono::steady_clock::now();
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false once this object is destroyed; set on the loop
  std::thread thread_;                                                // started with the first pool
};

template <auto function>
class RemoteFunction {
 public:
  using Signature = FunctionSignature<decltype(function)>;
  using Params = typename Signature::Params;
  using Return = std::remove_cvref_t<typename Signature::Return>;

  RemoteFunction(FunctionPools& pools, FunctionOptions options) : pools_(&pools), options_(std::move(options)) {}

  // Does not wait for the call; errors are in the future. The first call of a kind has a worker started.
  template <class... A>
  Answer<Return> operator()(const A&... args) const {
    Streams::Id stream = 0;
    if constexpr (kYields<Return>) stream = new_stream(pools_->hub());
    auto encoded = encode_for<Return>(&pools_->hub().memory(), Params(), stream, args...);
    return answer_of<Return>(pools_->hub(), pools_->submit(function_name<function>(), options_, std::move(encoded)), stream);
  }

 private:
  FunctionPools* pools_;
  FunctionOptions options_;
};

}  // namespace shoal::actors::api

namespace shoal {

// The remote functions of a program, for shoal::main.
template <auto... functions>
struct Functions {};

}  // namespace shoal
