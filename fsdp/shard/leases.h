// This rank's leases on a model's units, and the version of the parameters that they read.
//
// A unit is leased only while this rank reads a version. The rows of every rank in that version are final, and have arrived on this host.
// All leases end before the write window opens. All ranks have the same model; the first lease compares them. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/link/host_link.h"
#include "fsdp/plan/stepper.h"
#include "fsdp/protocol/version_gate.h"
#include "fsdp/shard/peers.h"
#include "fsdp/unit/sharded_unit.h"

namespace shoal::fsdp {

class Leases {
 public:
  // All references outlive this object. `link`: for ranks on several hosts, else null.
  Leases(Control& control, int rank, int world_size, const Units& units, Peers& peers, const Stepper& stepper, HostLink* link);

  // Enters the engine: this rank's writes become the next version. If an earlier wait for a window failed, that window opens first.
  Result<void> enter();
  // Enters the engine and takes a lease. Waits until the version may be read.
  Result<void> take(std::size_t unit);
  void drop_all();
  // Opens this rank's write window: waits until no rank reads this version. `caller` names the caller in messages about the wait.
  Result<void> open_window(const std::string& caller);
  bool window_open() const { return gate_.phase() == VersionGate::Phase::kWriting; }

  std::uint64_t version() const { return gate_.version(); }
  // Checks that a backward may continue: the version that its forward read is still current, and the unit is not given up.
  Result<void> check_version(std::size_t unit, std::uint64_t version) const;
  // Ends this rank's reads of a unit in this version, once its gradients are published (optimizer in backward). After their reduction the
  // unit's rows may be written before the window opens. Leases and backwards of the unit fail until the next version.
  void give_up(std::size_t unit) { given_up_[unit] = gate_.version(); }
  bool given_up(std::size_t unit) const {
    return gate_.phase() == VersionGate::Phase::kReading && given_up_[unit] != 0 && given_up_[unit] == gate_.version();
  }
  // True if another rank has left the version that this rank still reads.
  bool others_left() const { return gate_.others_left(); }

 private:
  Result<void> check_models();
  Result<void> check_given_up(std::size_t unit) const;
  // Units in the order in which the plan's forwards need them. Without a plan, in their own order.
  std::vector<std::uint32_t> order_of_use() const;

  Control& control_;
  const int rank_;
  const int world_size_;
  const Units& units_;
  Peers& peers_;
  const Stepper& stepper_;
  HostLink* const link_;
  const std::uint64_t fingerprint_;  // hash of the model
  bool models_checked_ = false;
  VersionGate gate_;
  std::vector<std::uint64_t> given_up_;  // by unit: the version in which it was given up; 0: never
};

}  // namespace shoal::fsdp
