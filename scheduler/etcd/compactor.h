// Makes etcd forget former values of its keys: nobody here reads them, and an etcd that keeps all of them is full one day and takes no
// write any more.
//
// Of whoever leads, in a thread of its own: nobody waits for it, and what goes wrong is logged and tried again at the next turn. It means
// all keys of that etcd, also those of others.
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
  // `written`: the revision of the last write of this head, asked for from that thread. What is forgotten is as old as `every`, at least.
  Compactor(runtime::Log log, std::unique_ptr<Client> client, runtime::Duration every, std::function<std::int64_t()> written);
  // Waits for a request that is under way.
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
  runtime::SideThread thread_;  // last: ends first
};

}  // namespace shoal::scheduler::etcd
