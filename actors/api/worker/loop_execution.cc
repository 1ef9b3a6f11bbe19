#include "actors/api/worker/loop_execution.h"

#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/post.hpp>

#include "actors/api/worker/run_call.h"

namespace shoal::actors::api {

namespace {

// An executor of a coroutine. During each step, the coroutine's call is the running call of the thread (RunsCall).
class CallExecutor {
 public:
  CallExecutor(asio::io_context& loop, const RunningCall& call) : loop_(&loop), call_(call) {}

  template <class F>
  void execute(F f) const {
    asio::post(*loop_, [call = call_, f = std::move(f)]() mutable {
      const RunsCall runs(call);
      std::move(f)();
    });
  }
  // Never runs a step inside the caller, which may be a step of another call.
  asio::io_context& query(asio::execution::context_t) const { return *loop_; }
  static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) { return asio::execution::blocking.never; }
  CallExecutor require(asio::execution::blocking_t::never_t) const { return *this; }
  bool operator==(const CallExecutor& other) const noexcept { return loop_ == other.loop_ && call_.key == other.call_.key; }
  bool operator!=(const CallExecutor& other) const noexcept { return !(*this == other); }

 private:
  asio::io_context* loop_;
  RunningCall call_;
};

}  // namespace

LoopExecution::LoopExecution(ExecutionParts parts)
    : runner_(parts.runner), calls_(std::move(parts)), work_(loop_.get_executor()), thread_([this] { loop_.run(); }) {}

LoopExecution::~LoopExecution() {
  loop_.stop();
  thread_.join();
}

Incoming LoopExecution::run_until_release() {
  return calls_.run_until_release(
      [this](Turn turn) { asio::post(loop_, [this, running = std::make_shared<Running>(std::move(turn))] { begin(running); }); });
}

void LoopExecution::cancel(CallKey call) {
  if (calls_.cancel(call)) asio::post(loop_, [this, call] { stop(call); });
}

void LoopExecution::begin(const std::shared_ptr<Running>& running) {
  const Incoming& incoming = running->turn.incoming;
  const CallKey key = incoming.key();
  const RunningCall call{&runner_.context(), key, incoming.call.method};
  const RunsCall runs(call);
  // The call may have been cancelled while it waited.
  if (const auto wanted = check_cancelled(); !wanted) return calls_.ended(std::move(running->turn), fail(wanted.error()));
  running_[{key.peer, key.request}] = running;
  asio::co_spawn(CallExecutor(loop_, call), runner_.start(incoming),
                 asio::bind_cancellation_slot(running->stop.slot(), [this, running, key](std::exception_ptr thrown, Result<Value> value) {
                   running_.erase({key.peer, key.request});
                   if (thrown) value = fail(from_exception(thrown, method_threw, "the method threw"));
                   if (running->cancelled && !value && value.error().code() == Code::kCancelled) {
                     value = fail(call_cancelled(running->turn.incoming.call.method));
                   }
                   calls_.ended(std::move(running->turn), std::move(value));
                 }));
}

void LoopExecution::stop(CallKey call) {
  const auto it = running_.find({call.peer, call.request});
  if (it == running_.end()) return;
  const auto running = it->second;  // keeps the running call alive, which emit() may end at once
  running->cancelled = true;
  running->stop.emit(asio::cancellation_type::all);
}

}  // namespace shoal::actors::api
