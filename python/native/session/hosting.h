// A worker's side of calls: takes, runs and answers them, and tracks cancelled ones.
#pragma once

#include <pthread.h>

#include <chrono>
#include <optional>
#include <utility>

#include "actors/session/references/actor_host.h"
#include "python/native/bindings.h"
#include "python/native/session/session.h"

namespace shoal::python {

// A call that waits for this process's answer.
class PyIncoming {
 public:
  PyIncoming(actors::Incoming incoming, std::shared_ptr<PySession::Users> users)
      : incoming_(std::move(incoming)), users_(std::move(users)) {}
  PyIncoming(const PyIncoming&) = delete;
  PyIncoming& operator=(const PyIncoming&) = delete;
  // Fails the call if it is unanswered.
  ~PyIncoming();
  const actors::Call& call() const { return incoming_.call; }
  const actors::Incoming& incoming() const { return incoming_; }
  actors::CallKey key() const { return incoming_.key(); }
  void reply(const actors::Value& value) {
    answered_ = true;
    incoming_.reply(value);
  }
  void fail(const Error& error) {
    answered_ = true;
    incoming_.fail(error);
  }
  void let_go_of_arguments() {
    incoming_.call.args = {};
    incoming_.call.deps.clear();
  }
  void began() { incoming_.taken.began(); }
  // The caller's process and its number of the call, 16 hex digits each, without the attempt.
  std::string task_id() const { return to_string(incoming_.from) + hex(actors::task_number(incoming_.call.task, 0)); }
  // Moves out what is needed to answer the call, without its arguments.
  actors::Incoming release() {
    answered_ = true;
    return {{},
            std::move(incoming_.responder),
            incoming_.peer,
            incoming_.local,
            incoming_.from,
            incoming_.from_node,
            incoming_.references,
            std::move(incoming_.taken)};
  }

 private:
  actors::Incoming incoming_;
  const std::shared_ptr<PySession::Users> users_;
  bool answered_ = false;
};

inline actors::CallKey key_of(const PyIncoming* incoming) { return incoming ? incoming->key() : actors::CallKey(); }

std::chrono::steady_clock::time_point deadline_in(std::optional<double> seconds);

}  // namespace shoal::python
