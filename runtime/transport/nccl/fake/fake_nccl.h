// NCCL for tests: ranks are threads, devices those of FakeCuda. It moves real bytes on the streams, and reduces in rank order.
//
// It refuses what NCCL refuses. It also notices what makes NCCL hang or mix up data: operations that differ, a group that is not ended, use
// after an abort, calls to a communicator while NCCL still works on those to another one of the device. Such a misuse is recorded as a
// violation. Operations that differ never end, as on devices, until their communicators are aborted.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
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
  // Calls that begin from now on never come to their streams, until hang_launches(false): NCCL waits for the other ranks to connect.
  void hang_launches(bool hang);
  // A communicator's first calls come to its stream once all its ranks have made them, as NCCL connects them then.
  void connect_with_first_calls(bool connect);
  // From now on, calls of a device get stuck in ncclGroupEnd, as on a full stream, until their communicator is aborted. -1: of no device.
  void block_calls(int device);
  // NCCL puts calls on their stream at the poll with this number, counted from the calls on.
  void launch_at_poll(int number);
  // Settings of communicators are read as NCCL of this version reads them; at first 2.27.3, the fake's own.
  void read_settings_as(int version);
  // The thread that makes a communicator is stuck until hold_init(false).
  void hold_init(bool hold);
  // Records issues, and as a violation two ranks that issue to two communicators in different orders.
  void check_order(bool check);

  // ---- for a test to read ----

  // One group of calls to a communicator.
  struct Issue {
    std::thread::id thread;
    int device;
    std::uint64_t communicator, number;             // the number counts the issues of this rank to the communicator
    std::map<std::uint64_t, std::uint64_t> before;  // issues to the other communicators of the device, by communicator
  };
  std::vector<Issue> take_issues();  // issues since check_order(true)
  std::vector<std::string> take_violations();
  std::vector<std::string> take_names();          // the names of communicators that were made since the last call
  std::size_t num_communicators() const;          // neither destroyed nor aborted
  std::size_t num_in_progress(int device) const;  // communicators with calls that are not on the stream yet
  std::size_t num_blocked() const;                // threads in block_calls()

 private:
  friend struct FakeNcclFunctions;
  // With the mutex.
  bool connects(const FakeComm& comm) const;  // its calls need those of other ranks to come to the stream
  void note_issue(FakeComm& comm, const std::set<NcclComm>& group);
  void compare_orders(const Issue& issue);
  void violation(std::string what);
  void read_settings(const NcclConfig& config);
  NcclStatus refuse(NcclStatus status, std::string what);
  NcclStatus take_failure(const std::string& function);

  mutable std::mutex mutex_;
  std::uint64_t num_ids_ = 0;
  bool hang_ = false, hang_launches_ = false, hold_init_ = false, check_order_ = false, connects_ = false;
  int blocked_device_ = -1;
  std::size_t num_blocked_ = 0;
  int settings_version_ = 22703;
  int launching_poll_ = 2;  // so that the first poll comes too early
  std::condition_variable init_, ends_;
  std::vector<Issue> issues_;
  std::map<std::string, NcclStatus> failures_;
  std::map<std::uint64_t, std::shared_ptr<FakeClique>> cliques_;
  std::map<NcclComm, std::shared_ptr<FakeComm>> comms_;  // live communicators
  std::vector<std::shared_ptr<FakeComm>> ended_;         // kept, so that no other gets the address
  std::vector<std::string> violations_, names_;
};

}  // namespace shoal::runtime
