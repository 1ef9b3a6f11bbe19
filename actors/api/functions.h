// Remote functions from the caller's side: ordinary functions that run in processes which this one keeps for them.
//
//   double mean(const std::vector<double>& xs);
//   shoal::main<shoal::Functions<&mean>, Counter>(argc, argv, run);
//   ...
//   context.remote<&mean>({.num_cpus = 2})(numbers).get()
//
// Which worker runs what, and what is run again, is decided in actors/session/task_pool.h. Here are the workers, and a thread that starts
// and ends them. Threads: any.
#pragma once

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

#include "actors/api/handle.h"
#include "actors/api/launch.h"
#include "actors/api/options.h"
#include "actors/session/task_pool.h"

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

// With its namespaces: what a worker looks for.
template <auto function>
constexpr std::string_view function_name() {
  std::string_view name = argument_in(pretty_pointer<function>());
  if (name.starts_with('&')) name.remove_prefix(1);
  return name;
}

// The class of the actors that run functions, as a worker's first call names it.
inline constexpr std::string_view kFunctionClass = "shoal::functions";

class FunctionPools {
 public:
  struct Options {
    std::chrono::milliseconds idle{2000};  // then a worker gives its CPU back
    std::chrono::milliseconds look{100};   // how often the cluster is asked for room while there is none
    std::chrono::milliseconds last_words;  // for a worker that ends to say what it leaves,
    std::chrono::milliseconds needed;      // or, when calls of its own are open for so long, that it is needed. It is asked again then
  };
  using Names = std::set<std::string, std::less<>>;
  // `known`: to this program's workers.
  FunctionPools(Hub& hub, const Launcher& launcher, const Names& known, Options options)
      : hub_(hub), launcher_(launcher), known_(known), options_(options) {}
  ~FunctionPools();  // what is not done fails as Cancelled

  Hub& hub() { return hub_; }
  // Queues a call. `name` lives for ever.
  Reply submit(std::string_view name, const FunctionOptions& options, Result<Encoded> args);
  // What this process, a worker of functions itself, leaves to the one that keeps it, with what was left to it. `asked`: in how many ms
  // that one wants to hear it. First whether that is all: calls that it has made may be open, and it is to be asked again.
  Result<Value> last_words(const Value& asked);

 private:
  struct Pool {
    Resources resources;
    FunctionOptions options;
    std::shared_ptr<TaskPool> tasks;
  };
  Result<std::shared_ptr<Pool>> pool_for(const FunctionOptions& options);
  Result<void> grow(Pool& pool);
  // Does what the pool wants. Whether some of that has to wait for room.
  bool attend(Pool& pool);
  std::size_t room_for(const Pool& pool, std::size_t workers, bool starting);
  // One that has nothing to do any more. One that was made says first what it leaves; nobody waits for that here.
  void end(ActorId worker);
  // Retires those that have said it: the actors that they made are this process's from then on. One that says nothing is killed, and what
  // it made ends with it, as nobody would ever count who has that. Who cannot be ended, since the head is away, stays to be.
  void see_off();
  void lend();
  // Of all that have nothing to do: until then they may say theirs. Whether all have.
  bool see_off_all(std::chrono::steady_clock::time_point until);
  void run();

  Hub& hub_;
  const Launcher& launcher_;
  const Names& known_;
  const Options options_;
  std::mutex pools_mutex_;
  std::map<std::string, std::shared_ptr<Pool>> pools_;  // by what their workers are
  std::mutex mutex_;                                    // of what follows; taken by handlers of the loop
  std::condition_variable changed_;
  bool wanted_ = false, ending_ = false;
  std::mutex retiring_mutex_;  // of what follows: whether the workers were made, and those that were asked what they leave
  struct Leaving {
    ActorId worker;
    ValueFuture words;
    std::chrono::steady_clock::time_point until;
    enum class How : std::uint8_t { kAsked, kRetired, kKilled } how = How::kAsked;
    std::size_t adopted = 0;  // of those that it names
  };
  void ask(Leaving& leaving);
  Result<void> adopt(Leaving& leaving);
  std::map<ActorId, ValueFuture> made_;
  bool lent_ = false;  // its CPUs, to its end
  std::size_t sweep_at_ = 64;
  std::vector<Leaving> leaving_;
  std::chrono::steady_clock::time_point again_at_;  // not before
  std::chrono::steady_clock::time_point looked_at_ = std::chrono::steady_clock::now();
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // the loop's
  std::thread thread_;                                                // once there is a pool
};

template <auto function>
class RemoteFunction {
 public:
  using Signature = FunctionSignature<decltype(function)>;
  using Params = typename Signature::Params;
  using Return = std::remove_cvref_t<typename Signature::Return>;

  RemoteFunction(FunctionPools& pools, FunctionOptions options) : pools_(&pools), options_(std::move(options)) {}

  // Never blocks for what it calls and never fails at once: what is wrong, the future tells. (The first call of its kind has a process
  // started.)
  template <class... A>
  Answer<Return> operator()(const A&... args) const {
    Streams::Id stream = 0;
    if constexpr (kYields<Return>) stream = new_stream(pools_->hub());
    auto encoded = encode_for<Return>(&pools_->hub().session.memory(), Params(), stream, args...);
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
