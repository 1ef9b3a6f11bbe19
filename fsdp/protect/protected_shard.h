// A rank's step record beside the units that it refers to: what the optimizer of a protected model uses. Main thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/protect/adoption.h"
#include "fsdp/protect/protected_update.h"
#include "fsdp/protect/shared_arrays.h"
#include "fsdp/unit/sharded_unit.h"

namespace shoal::fsdp {

class ProtectedShard {
 public:
  // Makes the record. States that `shared` has lie there, all other states in the record, as zeros. The rank sets them, then calls
  // set_usable(). InvalidArgument: a unit's arena is no memory of a node, or parameters lie outside of it. `name`: the first part of the
  // records' names, unique to this mesh and host. An arena's name would not do, because another mesh may take the arena over.
  static Result<std::unique_ptr<ProtectedShard>> make(Units units, const std::vector<StateSpec>& states, std::uint64_t step,
                                                      const std::string& name, std::shared_ptr<SharedArrays> shared,
                                                      const OpenMemory& open);

  // The name under which the node has the record of a rank of this host.
  std::string key_of(int rank) const;
  // The name and the contents of the replica that this host holds for `rank`, a rank of another host.
  std::string replica_key_of(int rank) const;
  Result<StepRecord::Spec> replica_spec(int rank) const;
  std::string key() const { return key_of(units_.front()->rank()); }
  std::size_t bytes() const { return memory_.size(); }

  // The memory of the state with this position in `states`.
  std::span<std::byte> state(std::size_t index) const;
  // False while states are written into the record. They are torn meanwhile, so a death loses them.
  void set_usable(bool usable) const { update_->step_record().set_usable(usable); }
  ProtectedUpdate& update() { return *update_; }
  const Memories& arenas() const { return arenas_; }
  RecordWords words() const { return words_of(update_->step_record()); }

 private:
  ProtectedShard(Units units, std::vector<StateSpec> states, std::string name)
      : units_(std::move(units)), states_(std::move(states)), name_(std::move(name)) {}
  Result<StepRecord::Spec> spec_of(int rank, std::uint64_t step) const;

  const Units units_;
  const std::vector<StateSpec> states_;
  const std::string name_;
  runtime::Mapping memory_;
  std::shared_ptr<SharedArrays> shared_;
  Memories arenas_;
  std::size_t first_state_ = 0;  // the first state's number in the record; the arrays before are rows of parameters
  std::optional<ProtectedUpdate> update_;
};

}  // namespace shoal::fsdp
