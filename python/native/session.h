// The Session as Python holds it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/session.h"
#include "python/native/bindings.h"

namespace shoal::python {

// Calls that were taken from the queue and that nobody wants any more. The loop's, but for what is atomic.
struct Cancels {
  void note(actors::CallKey call, actors::CancelHow how);
  bool has(actors::CallKey call) const;

  static constexpr std::size_t kMaxCalls = 4096;  // the oldest are answered long since
  std::deque<actors::CallKey> calls;
  std::vector<actors::CallKey> untold;  // of those, if somebody wants to be told
  bool tells = false;
  std::optional<pthread_t> interrupted;  // the thread that runs them, if they can be
  std::atomic<bool> any = false;
  std::atomic<bool> signalled = false;
};

class PySession {
 public:
  explicit PySession(std::unique_ptr<actors::Session> session) : session_(std::move(session)) {}

  // Raises Unavailable when it is closed, or this process was forked from the one that opened it.
  actors::Session& get() const;
  void close();
  void abandon_after_fork();

  std::shared_ptr<actors::CallQueue> queue;  // of a worker that serves
  std::shared_ptr<Cancels> cancels = std::make_shared<Cancels>();
  bool stopped = false;                                              // its next_call ends; the loop's
  std::map<std::string, std::shared_ptr<actors::CallQueue>> queues;  // of actors that a driver hosts, by id

 private:
  std::unique_ptr<actors::Session> session_;
  bool forked_ = false;
};

}  // namespace shoal::python
