// Which ranks of a mesh share memory. Ranks of one host map the same arenas and control words; ranks of different hosts map none together.
#pragma once

#include <span>
#include <vector>

namespace shoal::fsdp {

// Ranks [begin, begin + size): all ranks below one node of the tree of additions (kernels/kernels.h).
struct Block {
  int begin = 0;
  int size = 1;
  bool operator==(const Block&) const = default;
};

class Hosts {
 public:
  // One host with all ranks.
  Hosts(int world_size) : Hosts(std::vector<int>(static_cast<std::size_t>(world_size))) {}  // NOLINT: converts from a world size
  // The host of each rank, as numbers from 0 without gaps. `places`: see place_of(); empty: each rank's place is its number.
  explicit Hosts(std::vector<int> host_of_rank, std::vector<int> places = {});

  int world_size() const { return static_cast<int>(host_of_rank_.size()); }
  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  // The position of a rank among those of its host.
  std::size_t index_of(int rank) const { return static_cast<std::size_t>(index_of_rank_[static_cast<std::size_t>(rank)]); }
  std::span<const int> ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  // The rank of `host` that exchanges data with `rank`, a rank of another host.
  int partner(int rank, int host) const;
  // The leaf at which a rank's gradients stand in the tree of additions (kernels/kernels.h). Places ascend with the ranks. A rank that has
  // added up the gradients of several leaves, all those below one node, stands at the first of them.
  int place_of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  // The largest blocks that hold ranks of `host` only, in order. A host sends one sum per block. A sum along the tree has the same bits
  // with sums of blocks in place of their ranks (kernels/kernels.h).
  std::span<const Block> blocks(int host) const { return blocks_[static_cast<std::size_t>(host)]; }

 private:
  // Leaves [begin, begin + size) of the tree: `begin` is a multiple of `size`, a power of two.
  void append_blocks(int host, int begin, int size);

  std::vector<int> host_of_rank_;
  std::vector<int> places_;              // by rank
  std::vector<int> index_of_rank_;       // position of each rank among those of its host
  std::vector<std::vector<int>> ranks_;  // by host, ascending
  std::vector<std::vector<Block>> blocks_;
};

}  // namespace shoal::fsdp
