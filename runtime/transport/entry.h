// A rank's description of a collective. The ranks compare their descriptions before they exchange data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

struct Entry {
  std::uint64_t sequence = 0;  // number of the collective on its rank, from 1
  Collective kind = Collective::kNone;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = -1;
  // Size of all ranks' data together, the same on all ranks; 0 where sizes may differ.
  std::uint64_t bytes = 0;
  std::uint64_t counts = 0;  // hash of the counts of all ranks
  std::uint64_t step = 0;
  std::string label;
};
// Describes a collective in errors: "all_reduce 12 (sum of 4096 bytes of float32) 'clip', step 3".
std::string describe(const Entry& entry);
// Returns true if the entries of two ranks with the same number match. Labels and steps may differ.
bool agree(const Entry& a, const Entry& b);
// The entry of this rank's collective with number `sequence`.
Entry entry_of(std::uint64_t sequence, const CollectiveSpec& spec, const Call& call);

// Returns the offset of each rank's part; the parts are adjacent.
std::vector<std::size_t> begins_of(const std::vector<std::size_t>& counts);

}  // namespace shoal::runtime
