// The memory for gradients in flight on one host: a few slots for each rank of the host. Each block of ranks of another host has slots,
// too, since their sum arrives as one.
//
// A rank's slot has the unit's gradients in their reduce dtype. A block of several ranks has sums, in fp32 or fp64 (sum_dtype).
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
// The dtype in which an owner adds up gradients of a parameter: fp64 if its shard, or its sum within the replica, is in fp64.
inline DType sum_dtype(const Placed& p, bool everywhere) {
  return everywhere && p.parameter.dtype == DType::kFloat64 ? DType::kFloat64 : sum_dtype(p.reduce_dtype());
}

class Slots {
 public:
  // The origin of a slot's gradients, or sums: a rank of this host, or a block of another host's ranks.
  struct Leaf {
    Block ranks;
    int place = 0;  // in the tree by which leaves are added up
    int host = 0;
    bool is_sum = false;  // true: a sum of several ranks' gradients
  };

  // `memory` has bytes(..) bytes. `host`: the host of this process.
  Slots(std::byte* memory, const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots);
  static std::size_t bytes(const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots);

  std::uint64_t num_slots() const { return num_slots_; }
  // All leaves, in the order of ranks.
  const std::vector<Leaf>& leaves() const { return leaves_; }
  // The leaf that begins with this rank.
  std::size_t leaf_of(int rank) const { return leaf_of_rank_[static_cast<std::size_t>(rank)]; }
  // The dtype of a parameter's gradients in the slots of a leaf. `everywhere`: as in Reducer::How.
  DType dtype(std::size_t leaf, const Placed& p, bool everywhere) const {
    return leaves_[leaf].is_sum ? sum_dtype(p, everywhere) : p.reduce_dtype();
  }
  // The gradients of one parameter in the publication with this number.
  std::byte* at(std::size_t leaf, std::uint64_t sequence, const Placed& p) const {
    const std::size_t widening = widening_of(leaves_[leaf]);
    return memory_ + begins_[leaf] + sequence % num_slots_ * stride_ * widening + p.slot_offset_bytes * widening;
  }

 private:
  static std::vector<Leaf> leaves_of(const Hosts& hosts, int host);
  static std::size_t stride_of(const std::vector<const Layout*>& layouts);
  // A sum may have four times the bytes of its gradients: fp64 of half precision.
  static std::size_t widening_of(const Leaf& leaf) { return leaf.is_sum ? 4 : 1; }

  std::byte* memory_;
  std::vector<Leaf> leaves_;
  std::vector<std::size_t> leaf_of_rank_;
  std::size_t stride_;               // bytes of a rank's slot
  std::vector<std::size_t> begins_;  // by leaf: offset of its slots
  std::uint64_t num_slots_;
};

}  // namespace shoal::fsdp
