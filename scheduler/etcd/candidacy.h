// One head among several: registered in etcd under a lease, and the leader as soon as there is no other.
//
// A thread keeps the lease. This process leads from `elected` until it can no longer prove, on its own clock, that etcd still has its
// lease. When a leader's process dies, the next head follows when the lease ends; one on the same host sees the death and follows at once.
// An elected head never stands again: it leads, and ends.
//
// Keys below shoal/NAME/: `about` (shared by all heads), `heads/ID`, `leader`, `ended`. All but `about` end with a lease.
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
  std::string fingerprint;  // hash of token and authority; equal for all heads of a cluster
  std::int64_t ttl_s = 3;   // duration of the lease; etcd's minimum is about 2
  runtime::Duration keep_every = std::chrono::seconds(1);
  runtime::Duration look_every = std::chrono::milliseconds(200);  // interval of checks while this head waits
  // Callbacks on the loop:
  std::function<void(Leadership)> elected;
  std::function<void(std::string leader, std::vector<std::string> heads)> heads;  // endpoints, whenever they change; leader "": none
  std::function<void()> ended;                                                    // the cluster ends
};

class Candidacy {
 public:
  // Registers the head. InvalidArgument/TokenRefused if the cluster's heads have another token; Unavailable without etcd.
  static Result<std::unique_ptr<Candidacy>> make(runtime::Loop& loop, runtime::Clock& clock, runtime::Random& random, runtime::Log log,
                                                 const Address& address, CandidacyOptions options);
  // Gives the lease back, so that the next head leads at once. The head itself has to end before.
  virtual ~Candidacy() = default;
  // Returns true while this head is the elected leader. Loop thread.
  virtual bool leads() const = 0;
  // Makes every head end; blocks for a moment. Called by the leader.
  virtual void end_cluster() = 0;
};

}  // namespace shoal::scheduler::etcd
