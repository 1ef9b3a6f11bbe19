// Owns background tasks: no task outlives the group, and every failure is reported.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "runtime/loop/loop.h"
#include "runtime/loop/task.h"

namespace shoal::runtime {

// Loop thread only.
class TaskGroup {
 public:
  // on_error is called for each task that failed, but not for one that stop() cancelled.
  TaskGroup(Loop& loop, std::function<void(const std::string& name, const Error&)> on_error);
  ~TaskGroup();  // CHECKs that no task runs: co_await stop() first
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // Starts the task. An exception of a library, such as Asio's cancellation, becomes an Error here.
  void spawn(std::string name, Task<void> task);
  std::size_t size() const { return running_.size(); }

  // Cancels every task and returns when the last one has ended. Tasks spawned later are cancelled at once.
  Task<void> stop();
  // As stop() above, for callers that are not coroutines.
  void stop(std::function<void()> drained);

 private:
  struct Running;
  void ended(std::list<Running>::iterator it, std::exception_ptr exception, Result<void> result);

  Loop& loop_;
  std::function<void(const std::string&, const Error&)> on_error_;
  std::list<Running> running_;
  std::function<void()> drained_;
  bool stopping_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::runtime
