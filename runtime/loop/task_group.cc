#include "runtime/loop/task_group.h"

#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include "runtime/core/check.h"

namespace shoal::runtime {

struct TaskGroup::Running {
  std::string name;
  asio::cancellation_signal cancel;
};

Task<void> sleep(Clock& clock, Duration delay) {
  auto timer = std::make_shared<Timer>();
  std::function<void(std::function<void(Result<void>)>)> start = [&clock, delay, timer](std::function<void(Result<void>)> on_end) {
    *timer = clock.after(delay, [on_end] { on_end(Result<void>()); });
  };
  co_return co_await suspend<void>(std::move(start));
}

TaskGroup::TaskGroup(Loop& loop, std::function<void(const std::string&, const Error&)> on_error)
    : loop_(loop), on_error_(std::move(on_error)) {}

TaskGroup::~TaskGroup() {
  SHOAL_CHECK(running_.empty(), "a TaskGroup is destroyed while tasks run");
  *alive_ = false;
}

void TaskGroup::spawn(std::string name, Task<void> task) {
  const auto it = running_.emplace(running_.end());
  it->name = std::move(name);
  asio::co_spawn(loop_.io(), std::move(task),
                 asio::bind_cancellation_slot(it->cancel.slot(), [this, it](std::exception_ptr e, Result<void> result) {
                   ended(it, std::move(e), std::move(result));
                 }));
  if (stopping_) it->cancel.emit(asio::cancellation_type::all);
}

void TaskGroup::ended(std::list<Running>::iterator it, std::exception_ptr exception, Result<void> result) {
  if (exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::system_error& e) {
      result = fail(e.code() == asio::error::operation_aborted ? cancelled(e.what()) : from_errno(e.code().value(), it->name));
    } catch (const std::exception& e) {
      result = fail(internal(e.what()));
    }
  }
  const std::string name = std::move(it->name);
  running_.erase(it);
  if (!result && !(stopping_ && result.error().code() == Code::kCancelled)) on_error_(name, result.error());
  if (stopping_ && running_.empty() && drained_) std::exchange(drained_, nullptr)();
}

void TaskGroup::stop(std::function<void()> drained) {
  SHOAL_CHECK(!drained_, "a TaskGroup is stopped twice");
  stopping_ = true;
  if (running_.empty()) return drained();
  drained_ = std::move(drained);
  // A cancelled task may end at once, which erases it from running_. So this iterates over a copy of the signals.
  std::vector<asio::cancellation_signal*> signals;
  for (auto& r : running_) signals.push_back(&r.cancel);
  for (auto* s : signals) {
    asio::post(loop_.io(), [this, s, alive = alive_] {
      if (!*alive) return;  // all tasks have ended, and the group is gone
      for (auto& r : running_) {
        if (&r.cancel == s) return r.cancel.emit(asio::cancellation_type::all);
      }
    });
  }
}

Task<void> TaskGroup::stop() {
  std::function<void(std::function<void(Result<void>)>)> start = [this](std::function<void(Result<void>)> on_end) {
    stop([on_end] { on_end(Result<void>()); });
  };
  co_return co_await suspend<void>(std::move(start));
}

}  // namespace shoal::runtime
