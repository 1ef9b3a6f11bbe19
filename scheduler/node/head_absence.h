// Decides when a node that has no head ends. The head's host may have died for good, or come back with another cluster at its address. A
// node that waited for ever would keep its workers and their memory, and keep its host from joining a new cluster.
//
// Pure.
#pragma once

#include <optional>
#include <string>

#include "runtime/core/error.h"
#include "runtime/loop/clock.h"

namespace shoal::scheduler {

class HeadAbsence {
 public:
  struct Limits {
    // How long no head may answer the node; nullopt: for ever, as for a node that restarts its head itself.
    std::optional<runtime::Duration> unreached;
    // How long every head may belong to another cluster, by its token or authority. Certificates that are not valid at present do not
    // count: they may be those of this cluster, and be renewed.
    runtime::Duration refused = std::chrono::seconds(30);
  };
  HeadAbsence(Limits limits, runtime::TimePoint now) : limits_(limits), since_(now) {}

  // A head of the cluster has answered, if only with an error, or its connection has lasted until now.
  void answered(runtime::TimePoint now);
  // An attempt to reach a head has failed. Returns the reason why the node ends, if it has waited long enough.
  std::optional<std::string> failed(const std::string& heads, const Error& why, runtime::TimePoint now);

 private:
  const Limits limits_;
  runtime::TimePoint since_;
  std::optional<runtime::TimePoint> refused_since_;  // set while each attempt was refused
};

}  // namespace shoal::scheduler
