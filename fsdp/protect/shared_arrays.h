// Arrays with the layout of a model's parameters, whole, in one memory of the node: the states of its optimizer, and its gradients. Every
// rank of the model maps it and writes its own shards only.
//
// A rank's shard of an array is a range of the whole, as with parameters in place. So the ranks of another mesh on the same host take the
// memory over as it is: no byte moves, and no page is made anew. Main thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/unit/sharded_unit.h"
#include "runtime/core/fd.h"
#include "runtime/shm/memory.h"

namespace shoal::fsdp {

// An array of a parameter besides its rows: "grad", a state of the optimizer, "step" (its number of updates, one fp32), or new values of
// one of these (StepRecord::Array).
struct StateSpec {
  std::uint32_t unit = 0, parameter = 0;
  std::string name;
  DType dtype = DType::kFloat32;
  bool operator==(const StateSpec&) const = default;
};
// Opens memory of the node that outlives this process.
using OpenMemory = std::function<Result<Fd>(const std::string& key, std::size_t bytes)>;

class SharedArrays {
 public:
  // True if each rank's shards are ranges of the wholes, in any number of ranks: one replica, sharded on the first dim.
  static bool possible(const Units& units);
  // Opens the memory of this key, which is zeroed if it is new. All arrays of `states` but "step" lie in it. `before`: the same arrays on
  // another mesh, whose mapping is used again.
  static Result<std::unique_ptr<SharedArrays>> open(const Units& units, std::vector<StateSpec> states, const std::string& key,
                                                    const std::shared_ptr<SharedArrays>& before, const OpenMemory& open);

  const std::string& key() const { return key_; }
  const std::vector<StateSpec>& states() const { return states_; }
  std::span<std::byte> memory() const { return memory_->span(); }
  // True if these are the arrays of these states, with the sizes that these units' parameters have.
  bool fits(const Units& units, std::vector<StateSpec> states) const;
  // The offset of a whole array in the memory; none if it lies elsewhere.
  std::optional<std::size_t> find(const StateSpec& state) const;
  std::span<std::byte> whole(std::size_t index) const { return memory().subspan(places_[index].offset, places_[index].bytes); }
  // Makes the pages of this rank's shards now, which would otherwise slow down the first step.
  void populate(const Units& units) const;

 private:
  struct Range {
    std::size_t offset = 0, bytes = 0;
    bool operator==(const Range&) const = default;
  };
  // The places of arrays in their memory. InvalidArgument: an array belongs to no parameter.
  static Result<std::vector<Range>> places_of(const Units& units, const std::vector<StateSpec>& states);
  SharedArrays(std::string key, std::vector<StateSpec> states) : key_(std::move(key)), states_(std::move(states)) {}

  const std::string key_;
  std::vector<StateSpec> states_;
  std::vector<Range> places_;  // by index in states_
  std::shared_ptr<const runtime::Mapping> memory_;
};

}  // namespace shoal::fsdp
