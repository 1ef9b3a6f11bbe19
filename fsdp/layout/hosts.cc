#include "fsdp/layout/hosts.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/core/check.h"

namespace shoal::fsdp {

Hosts::Hosts(std::vector<int> host_of_rank, std::vector<int> places) : host_of_rank_(std::move(host_of_rank)), places_(std::move(places)) {
  SHOAL_CHECK(!host_of_rank_.empty(), "a mesh has at least one rank");
  if (places_.empty()) {
    places_.resize(host_of_rank_.size());
    std::iota(places_.begin(), places_.end(), 0);
  }
  SHOAL_CHECK(places_.size() == host_of_rank_.size() && places_.front() >= 0 && std::ranges::is_sorted(places_),
              "each rank has a place in the tree of additions, in the order of ranks");
  const int num_hosts = *std::ranges::max_element(host_of_rank_) + 1;
  ranks_.resize(static_cast<std::size_t>(num_hosts));
  blocks_.resize(static_cast<std::size_t>(num_hosts));
  for (int r = 0; r < world_size(); ++r) {
    auto& ranks = ranks_[static_cast<std::size_t>(host_of(r))];
    index_of_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(r);
  }
  const auto size = static_cast<int>(std::bit_ceil(static_cast<unsigned>(places_.back()) + 1));
  for (int h = 0; h < num_hosts; ++h) {
    SHOAL_CHECK(!ranks(h).empty(), "hosts are numbered without gaps");
    append_blocks(h, 0, size);
  }
}

int Hosts::partner(int rank, int host) const {
  const auto others = ranks(host);
  return others[static_cast<std::size_t>(index_of_rank_[static_cast<std::size_t>(rank)]) % others.size()];
}

void Hosts::append_blocks(int host, int begin, int size) {
  const auto rank_at = [&](int place) { return static_cast<int>(std::ranges::lower_bound(places_, place) - places_.begin()); };
  const Block block{rank_at(begin), rank_at(begin + size) - rank_at(begin)};
  if (block.size == 0) return;
  const auto first = host_of_rank_.begin() + block.begin;
  if (std::all_of(first, first + block.size, [&](int h) { return h == host; })) {
    blocks_[static_cast<std::size_t>(host)].push_back(block);
  } else if (size > 1) {
    append_blocks(host, begin, size / 2);
    append_blocks(host, begin + size / 2, size / 2);
  }
}

}  // namespace shoal::fsdp
