// One head among the heads of a cluster: registered in etcd under a lease, and the leader as soon as nobody else is.
//
// The lease is kept by a thread; this process leads from `elected` until the moment, on its own clock, from which it cannot prove any more
// that etcd still has its lease. A head whose process died is followed after the lease's time, or at once by one of the same host, which
// sees that it is dead. Who is elected never stands again: it leads, and ends.
//
// Keys below shoal/NAME/: `about` (what all heads share), `heads/ID`, `leader`, `ended`. All but `about` end with a lease.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/log/log.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/random.h"
#include "scheduler/etcd/store.h"

namespace shoal::scheduler::etcd {

struct CandidacyOptions {
  std::string endpoint;     // where this head listens once it leads
  std::string fingerprint;  // of the token and the authority: all heads of a cluster have the same
  std::int64_t ttl_s = 3;   // of the lease; etcd's least is about 2
  runtime::Duration keep_every = std::chrono::seconds(1);
  runtime::Duration look_every = std::chrono::milliseconds(200);  // of one who waits
  // On the loop:
  std::function<void(Leadership)> elected;
  std::function<void(std::string leader, std::vector<std::string> heads)> heads;  // endpoints, whenever they change; "": nobody leads
  std::function<void()> ended;                                                    // the cluster does
};

class Candidacy {
 public:
  // Registered. InvalidArgument/TokenRefused when the cluster's heads have another token; Unavailable without etcd.
  static Result<std::unique_ptr<Candidacy>> make(runtime::Loop& loop, runtime::Clock& clock, runtime::Random& random, runtime::Log log,
                                                 const Address& address, CandidacyOptions options);
  // Gives the lease back: the next one leads at once. After the head itself has ended.
  virtual ~Candidacy() = default;
  // It was elected, and is still the one. Loop's thread.
  virtual bool leads() const = 0;
  // Every head is to end; blocks for a moment. By the one who leads.
  virtual void end_cluster() = 0;
};

}  // namespace shoal::scheduler::etcd
