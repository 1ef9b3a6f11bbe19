#include "fsdp/protocol/slots.h"

#include <algorithm>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

std::vector<Slots::Leaf> Slots::leaves_of(const Hosts& hosts, int host) {
  std::vector<Leaf> out;
  for (const int r : hosts.ranks(host)) out.push_back({{r, 1}, hosts.place_of(r), host, false});
  for (int h = 0; h < hosts.num_hosts(); ++h) {
    if (h == host) continue;
    for (const Block block : hosts.blocks(h)) out.push_back({block, hosts.place_of(block.begin), h, block.size > 1});
  }
  std::ranges::sort(out, {}, [](const Leaf& leaf) { return leaf.ranks.begin; });
  return out;
}

std::size_t Slots::stride_of(const std::vector<const Layout*>& layouts) {
  std::size_t out = 0;
  for (const auto* l : layouts) out = std::max(out, l->slot_bytes());
  return (out + kPage - 1) / kPage * kPage;
}

std::size_t Slots::bytes(const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots) {
  std::size_t slots = 0;
  for (const Leaf& leaf : leaves_of(hosts, host)) slots += widening_of(leaf);
  return std::max(kPage, stride_of(layouts) * slots * static_cast<std::size_t>(num_slots));
}

Slots::Slots(std::byte* memory, const Hosts& hosts, int host, const std::vector<const Layout*>& layouts, int num_slots)
    : memory_(memory),
      leaves_(leaves_of(hosts, host)),
      leaf_of_rank_(static_cast<std::size_t>(hosts.world_size())),
      stride_(stride_of(layouts)),
      num_slots_(static_cast<std::uint64_t>(num_slots)) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    leaf_of_rank_[static_cast<std::size_t>(leaves_[i].ranks.begin)] = i;
    begins_.push_back(begin);
    begin += stride_ * widening_of(leaves_[i]) * num_slots_;
  }
}

}  // namespace shoal::fsdp
