#include "actors/api/worker/concurrent.h"

#include <algorithm>

#include <fmt/format.h>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/post.hpp>

#include "actors/api/worker/worker.h"

namespace shoal::actors::api {

namespace {

// Runs a coroutine's steps as part of its call.
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

void CallScheduler::add(Turn turn) {
  Group& group = groups_[turn.group];
  const std::size_t bytes = turn.incoming.call.inline_bytes();
  if (!group.waiting.empty() && (group.waiting.size() >= max_waiting_ || group.bytes + bytes > max_bytes_)) {
    return turn.incoming.fail(resource_exhausted(
        fmt::format("{} calls with {} bytes of arguments wait for this actor's methods of that group", group.waiting.size(), group.bytes)));
  }
  group.bytes += bytes;
  group.waiting.push_back({next_++, std::move(turn.incoming)});
}

std::optional<Turn> CallScheduler::next() {
  const auto none = groups_.size();
  std::size_t first = none;
  for (std::size_t i = 0; i < none; ++i) {
    if (groups_[i].free == 0 || groups_[i].waiting.empty()) continue;
    if (first == none || groups_[i].waiting.front().number < groups_[first].waiting.front().number) first = i;
  }
  if (first == none) return std::nullopt;
  Group& group = groups_[first];
  --group.free;
  std::optional<Turn> out(Turn{first, std::move(group.waiting.front().incoming)});
  group.waiting.pop_front();
  group.bytes -= out->incoming.call.inline_bytes();
  return out;
}

std::optional<Incoming> CallScheduler::cancel(CallKey call) {
  for (Group& group : groups_) {
    const auto it = std::find_if(group.waiting.begin(), group.waiting.end(), [&](const Waiting& w) { return w.incoming.key() == call; });
    if (it == group.waiting.end()) continue;
    std::optional<Incoming> out(std::move(it->incoming));
    group.waiting.erase(it);
    group.bytes -= out->call.inline_bytes();
    return out;
  }
  return std::nullopt;
}

CallThreads::CallThreads(std::size_t count, const std::function<void(Turn)>& run) {
  for (std::size_t i = 0; i < count; ++i) {
    threads_.emplace_back([this, run] {
      while (true) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !given_.empty(); });
        Turn turn = std::move(given_.front());
        given_.pop_front();
        lock.unlock();
        run(std::move(turn));
      }
    });
  }
}

void CallThreads::begin(Turn turn) {
  {
    const std::lock_guard lock(mutex_);
    given_.push_back(std::move(turn));
  }
  changed_.notify_one();
}

CallLoop::CallLoop(Context& context, Start start, Done done)
    : context_(context), start_(std::move(start)), done_(std::move(done)), work_(loop_.get_executor()), thread_([this] { loop_.run(); }) {}

CallLoop::~CallLoop() {
  loop_.stop();
  thread_.join();
}

void CallLoop::begin(Turn turn) {
  asio::post(loop_, [this, running = std::make_shared<Running>(std::move(turn))] { begin_now(running); });
}

void CallLoop::begin_now(const std::shared_ptr<Running>& running) {
  const Incoming& incoming = running->turn.incoming;
  const CallKey key = incoming.key();
  const RunningCall call{&context_, key, incoming.call.method};
  const RunsCall runs(call);
  // It was cancelled while it waited.
  if (const auto wanted = check_cancelled(); !wanted) return done_(std::move(running->turn), fail(wanted.error()));
  running_[{key.peer, key.request}] = running;
  asio::co_spawn(CallExecutor(loop_, call), start_(incoming),
                 asio::bind_cancellation_slot(running->stop.slot(), [this, running, key](std::exception_ptr thrown, Result<Value> value) {
                   running_.erase({key.peer, key.request});
                   if (thrown) value = fail(from_exception(thrown, method_threw, "the method threw"));
                   if (running->cancelled && !value && value.error().code() == Code::kCancelled) {
                     value = fail(call_cancelled(running->turn.incoming.call.method));
                   }
                   done_(std::move(running->turn), std::move(value));
                 }));
}

void CallLoop::cancel(CallKey call) {
  asio::post(loop_, [this, call] {
    const auto it = running_.find({call.peer, call.request});
    if (it == running_.end()) return;
    const auto running = it->second;  // keeps it alive, since it may end at once
    running->cancelled = true;
    running->stop.emit(asio::cancellation_type::all);
  });
}

}  // namespace shoal::actors::api
