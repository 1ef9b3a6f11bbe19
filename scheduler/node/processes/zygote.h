// A warm Python process that forks workers. There is one for each interpreter, with and without torch. This class is the node's end of it.
//
// The two processes exchange JSON over a private SOCK_SEQPACKET pair. A request carries the descriptors for the worker's stdout and stderr.
// The zygote forks twice, so that the worker becomes a child of the node (a subreaper), which then sees its end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/log/log.h"
#include "runtime/loop/loop.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class Zygote {
 public:
  using Env = std::vector<std::pair<std::string, std::string>>;
  using Started = std::function<void(Result<pid_t>)>;

  // Starts the zygote at once. Requests wait until it is ready and their turn comes. They fail when the zygote ends or this object is
  // destroyed.
  static Result<std::unique_ptr<Zygote>> start(runtime::Loop& loop, runtime::Log log, const std::string& python, bool torch,
                                               std::function<void()> died);
  ~Zygote();

  void fork(const actors::StartWorker& spec, const Env& env, Fd out, Fd err, Started started);
  pid_t pid() const;
  // Returns true while a worker may exist whose pid the zygote has not reported yet.
  bool busy() const;

 private:
  struct Impl;
  explicit Zygote(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::scheduler
