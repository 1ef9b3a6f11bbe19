// Makes etcd discard former values of its keys. No head reads them, and an etcd that keeps them all fills up and then refuses writes.
//
// The leader's store runs it in a thread of its own. Errors are logged, and the next turn tries again. Compaction concerns all keys of that
// etcd, also those of other users.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/log/log.h"
#include "runtime/loop/side_thread.h"
#include "scheduler/etcd/client.h"

namespace shoal::scheduler::etcd {

class Compactor {
 public:
  // `written`: returns the revision of this head's last write; called on this thread. A discarded value was replaced at least `every` ago.
  Compactor(runtime::Log log, std::unique_ptr<Client> client, runtime::Duration every, std::function<std::int64_t()> written);
  // Waits for a request under way.
  ~Compactor();

 private:
  void run();

  const runtime::Log log_;
  const std::unique_ptr<Client> client_;
  const runtime::Duration every_;
  const std::function<std::int64_t()> written_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool over_ = false;
  runtime::SideThread thread_;  // last member, so it ends first
};

}  // namespace shoal::scheduler::etcd
