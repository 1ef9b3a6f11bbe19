// The Session as Python holds it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "actors/session/session.h"
#include "python/native/bindings.h"

namespace shoal::python {

class PySession {
 public:
  explicit PySession(std::unique_ptr<actors::Session> session) : session_(std::move(session)) {}

  // Raises Unavailable when it is closed, or this process was forked from the one that opened it.
  actors::Session& get() const;
  void close();
  void abandon_after_fork();

  std::shared_ptr<actors::CallQueue> queue;                          // of a worker that serves
  bool stopped = false;                                              // its next_call ends; the loop's
  std::map<std::string, std::shared_ptr<actors::CallQueue>> queues;  // of actors that a driver hosts, by id

 private:
  std::unique_ptr<actors::Session> session_;
  bool forked_ = false;
};

}  // namespace shoal::python
