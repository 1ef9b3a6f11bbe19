// A warm Python process that forks workers: one per (interpreter, with or without torch). The node's end of the
// conversation.
//
// They speak JSON over a SOCK_SEQPACKET pair that nobody else holds; descriptors of a worker's stdout and stderr travel
// with its request. A worker is forked twice, so that it becomes the node's own child (the node is a subreaper) and its
// death is the node's to see.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/wire/messages.h"
#include "runtime/log/log.h"
#include "runtime/loop/loop.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class Zygote {
 public:
  using Env = std::vector<std::pair<std::string, std::string>>;
  using Started = std::function<void(Result<pid_t>)>;

  // Starts it at once. Requests wait until it is ready and their turn comes; when it dies, or is destroyed, they fail.
  static Result<std::unique_ptr<Zygote>> start(runtime::Loop& loop, runtime::Log log, const std::string& python, bool torch,
                                               std::function<void()> died);
  ~Zygote();

  void fork(const actors::StartWorker& spec, const Env& env, Fd out, Fd err, Started started);
  pid_t pid() const;
  // Whether a worker may exist already of which it has not told yet.
  bool busy() const;

 private:
  struct Impl;
  explicit Zygote(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::scheduler
