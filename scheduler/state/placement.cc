#include "scheduler/state/placement.h"

#include <fmt/format.h>

namespace shoal::scheduler {

using actors::Resources;

std::optional<std::vector<NodeId>> place(const std::vector<Resources>& wants, Room room) {
  std::vector<NodeId> out;
  for (const auto& want : wants) {
    auto chosen = room.end();
    if (!out.empty() && want.fits_in(room[out.back()])) chosen = room.find(out.back());
    for (auto it = room.begin(); chosen == room.end() && it != room.end(); ++it) {
      if (want.fits_in(it->second)) chosen = it;
    }
    if (chosen == room.end()) return std::nullopt;
    chosen->second -= want;
    out.push_back(chosen->first);
  }
  return out;
}

std::string explain(const std::vector<Resources>& wants, const Room& room) {
  if (room.empty()) return "there is no node";
  // The first want that no node holds after those before it were placed is the one to blame.
  Room left = room;
  for (std::size_t i = 0; i < wants.size(); ++i) {
    if (place({wants[i]}, left)) {
      left[place({wants[i]}, left)->front()] -= wants[i];
      continue;
    }
    const Resources& want = wants[i];
    const NodeId* nearest = nullptr;
    std::size_t fewest = ~std::size_t{0};
    for (const auto& [node, has] : left) {
      std::size_t lacking = 0;
      for (const auto& [name, units] : want.all()) lacking += units > has.units(name);
      if (lacking < fewest) {
        fewest = lacking;
        nearest = &node;
      }
    }
    const std::string which = wants.size() > 1 ? fmt::format(" (number {} of {})", i + 1, wants.size()) : "";
    return fmt::format("needs {}{}; nearest fit: node {} lacks {}", want.to_string(), which, to_string(*nearest),
                       want.missing_in(left.at(*nearest)));
  }
  return "fits";
}

}  // namespace shoal::scheduler
