// Owns background tasks: none outlives the group, none fails unheard.
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
  // on_error hears of each task that failed (never of one that ended Cancelled because of stop()).
  TaskGroup(Loop& loop, std::function<void(const std::string& name, const Error&)> on_error);
  ~TaskGroup();  // CHECKs that it is empty: co_await stop() first
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // An exception that is not ours (Asio's cancellation among them) becomes an Error here and goes no further.
  void spawn(std::string name, Task<void> task);
  std::size_t size() const { return running_.size(); }

  // Cancels every task and returns when the last one has ended. Further spawns end at once.
  Task<void> stop();
  // The same for callers that are no coroutine.
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
