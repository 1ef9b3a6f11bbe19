// The memory for gradients in flight on one host: a few slots for each rank of the host. Each block of ranks of another host has slots,
// too, since their sum arrives as one.
//
// A rank's slot has the unit's gradients in their reduce dtype. A block of several ranks has sums, in fp32 (fp64 if the gradients are).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fsdp/layout/hosts.h"
#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// The number of a publication has that of its attempt in its high bits: 2^24 attempts of 2^40 publications.
constexpr int kAttemptShift = 40;
inline std::uint64_t attempt_of(std::uint64_t sequence) { return sequence >> kAttemptShift; }

// The dtype of sums of gradients that travel as `dtype`.
inline DType sum_dtype(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

class Slots {
 public:
  // The origin of a slot's gradients, or sums: a rank of this host, or a block of another host's ranks.
  struct Leaf {
    Block ranks;  // cut to ranks that exist
    int host = 0;
    bool is_sum = false;  // true: of several ranks
  };

  // `memory` has bytes(..) bytes. `host`: the host of this process.
  Slots(std::byte* memory, const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots);
  static std::size_t bytes(const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots);

  std::uint64_t num_slots() const { return num_slots_; }
  // All leaves, in the order of ranks.
  const std::vector<Leaf>& leaves() const { return leaves_; }
  // The leaf that begins with this rank.
  std::size_t leaf_of(int rank) const { return leaf_of_rank_[static_cast<std::size_t>(rank)]; }
  // The dtype of a parameter's gradients in the slots of a leaf.
  DType dtype(std::size_t leaf, const Placed& p) const { return leaves_[leaf].is_sum ? sum_dtype(p.reduce_dtype()) : p.reduce_dtype(); }
  // The gradients of one parameter in the publication with this number.
  std::byte* at(std::size_t leaf, std::uint64_t sequence, const Placed& p) const {
    return memory_ + (leaf * num_slots_ + sequence % num_slots_) * stride_ + p.slot_offset_bytes * (leaves_[leaf].is_sum ? 2 : 1);
  }

 private:
  static std::vector<Leaf> leaves_of(const Hosts& hosts, int host);
  static std::size_t stride_of(const std::vector<Leaf>& leaves, const std::vector<const Layout*>& layouts);

  std::byte* memory_;
  std::vector<Leaf> leaves_;
  std::vector<std::size_t> leaf_of_rank_;
  std::size_t stride_;  // bytes of a slot
  std::uint64_t num_slots_;
};

}  // namespace shoal::fsdp
