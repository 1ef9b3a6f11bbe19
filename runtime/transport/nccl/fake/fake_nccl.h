// NCCL for tests: ranks are threads, devices those of FakeCuda. It moves real bytes on the streams, and reduces in rank order.
//
// It refuses what NCCL refuses. It also notices what makes NCCL hang or mix up data: operations that differ, a group that is not ended, use
// after an abort. Such a misuse is recorded as a violation. Operations that differ never end, as on devices, until their communicators are
// aborted.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/transport/nccl/fake/clique.h"

namespace shoal::runtime {

class FakeNccl {
 public:
  static FakeNccl& machine();
  const NcclApi& api() const;

  // ---- for a test to decide ----

  // The next call of a function fails: "ncclAllReduce", ...
  void fail_next(const std::string& function, NcclStatus status);
  // Communicators made from now on never connect, until hang_connecting(false).
  void hang_connecting(bool hang);
  // Operations that begin from now on never end, until hang_operations(false); an abort ends them.
  void hang_operations(bool hang);
  // The communicators of a device get an error of their own, as after a broken link.
  void break_device(int device, NcclStatus status);

  // ---- for a test to read ----

  std::vector<std::string> take_violations();
  std::size_t num_communicators() const;  // neither destroyed nor aborted

 private:
  friend struct FakeNcclFunctions;
  void violation(std::string what);
  NcclStatus refuse(NcclStatus status, std::string what);
  NcclStatus take_failure(const std::string& function);

  mutable std::mutex mutex_;
  std::uint64_t num_ids_ = 0;
  bool hang_ = false;
  std::map<std::string, NcclStatus> failures_;
  std::map<std::uint64_t, std::shared_ptr<FakeClique>> cliques_;
  std::map<NcclComm, std::shared_ptr<FakeComm>> comms_;  // live ones
  std::vector<std::shared_ptr<FakeComm>> ended_;         // kept, so that no other gets the address
  std::vector<std::string> violations_;
};

}  // namespace shoal::runtime
