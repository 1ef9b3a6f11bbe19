#include "fsdp/layout/hosts.h"

#include <algorithm>
#include <bit>

#include "runtime/core/check.h"

namespace shoal::fsdp {

Hosts::Hosts(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  SHOAL_CHECK(!host_of_rank_.empty(), "a mesh has at least one rank");
  const int num_hosts = *std::ranges::max_element(host_of_rank_) + 1;
  ranks_.resize(static_cast<std::size_t>(num_hosts));
  blocks_.resize(static_cast<std::size_t>(num_hosts));
  for (int r = 0; r < world_size(); ++r) {
    auto& ranks = ranks_[static_cast<std::size_t>(host_of(r))];
    index_of_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(r);
  }
  const auto size = static_cast<int>(std::bit_ceil(static_cast<unsigned>(world_size())));
  for (int h = 0; h < num_hosts; ++h) {
    SHOAL_CHECK(!ranks(h).empty(), "hosts are numbered without gaps");
    append_blocks(h, {0, size});
  }
}

int Hosts::partner(int rank, int host) const {
  const auto others = ranks(host);
  return others[static_cast<std::size_t>(index_of_rank_[static_cast<std::size_t>(rank)]) % others.size()];
}

bool Hosts::only_of(int host, Block block) const {
  const int end = std::min(block.begin + block.size, world_size());
  for (int r = block.begin; r < end; ++r) {
    if (host_of(r) != host) return false;
  }
  return block.begin < end;
}

void Hosts::append_blocks(int host, Block block) {
  if (only_of(host, block)) {
    blocks_[static_cast<std::size_t>(host)].push_back(block);
  } else if (block.size > 1) {
    const int half = block.size / 2;
    append_blocks(host, {block.begin, half});
    append_blocks(host, {block.begin + half, half});
  }
}

}  // namespace shoal::fsdp
