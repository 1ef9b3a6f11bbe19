// The candidacy of one head among several. It is registered in etcd under a lease, and leads as soon as no other head does. (This lease is
// etcd's: a key with a lease vanishes unless its owner extends the lease in time.)
//
// A thread keeps the lease. This process leads from the callback `elected` on. It stops when it cannot prove, by its own clock, that its
// lease has not run out. When a leader's process dies, the next head follows when the lease ends; one on the same host sees the death and
// follows at once. A head that was elected never stands again: when it leads no more, its process ends.
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
  bool data_tls = false;    // ranks on several hosts exchange their data in TLS only; equal for all heads
  std::int64_t ttl_s = 3;   // duration of the lease; etcd's minimum is about 2
  runtime::Duration keep_every = std::chrono::seconds(1);
  runtime::Duration check_every = std::chrono::milliseconds(200);  // interval of checks while this head waits
  // etcd's revision at which an earlier head of this session registered; 0: there was none. An end of the cluster after that revision
  // concerns this head.
  std::int64_t since = 0;
  // Callbacks on the loop:
  std::function<void(Leadership)> elected;
  std::function<void(std::string leader, std::vector<std::string> heads)> heads;  // endpoints, whenever they change; leader "": none
  std::function<void()> ended;                                                    // called when the cluster ends
};

class Candidacy {
 public:
  // Registers the head. Returns InvalidArgument/TokenRefused if the cluster's heads have another token, InvalidArgument/DataTls if they
  // differ in data_tls, Unavailable if etcd does not answer.
  static Result<std::unique_ptr<Candidacy>> make(runtime::Loop& loop, runtime::Clock& clock, runtime::Random& random, runtime::Log log,
                                                 const Address& address, CandidacyOptions options);
  // Gives the lease back, so that the next head leads at once. The caller has ended its Head before.
  virtual ~Candidacy() = default;
  // Returns true while this head is the elected leader. Loop thread.
  virtual bool leads() const = 0;
  // Makes every head end; blocks until etcd has confirmed it, or has not answered several times. Called by the leader.
  virtual Result<void> end_cluster() = 0;
  // etcd's revision from which on a cluster's end concerns this head.
  virtual std::int64_t since() const = 0;
};

}  // namespace shoal::scheduler::etcd
