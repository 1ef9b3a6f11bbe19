#include "scheduler/node/head_endpoints.h"

#include <algorithm>

namespace shoal::scheduler {

std::vector<std::string> HeadEndpoints::in_order() const {
  std::vector<std::string> out = {in_use().to_string()};
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (i != at_) out.push_back(all_[i].to_string());
  }
  return out;
}

std::optional<actors::Heads> HeadEndpoints::set_reported(const std::vector<std::string>& reported) {
  const auto used = in_use();
  auto all = configured_;
  for (const auto& text : reported) {
    const auto endpoint = runtime::parse_endpoint(text);
    if (endpoint && std::find(all.begin(), all.end(), *endpoint) == all.end()) all.push_back(*endpoint);
  }
  auto at = std::find(all.begin(), all.end(), used);
  if (at == all.end()) at = all.insert(all.end(), used);
  at_ = static_cast<std::size_t>(at - all.begin());
  all_ = std::move(all);
  const auto now = in_order();
  if (now == last_) return std::nullopt;
  const bool moved = !last_.empty() && last_.front() != now.front();
  last_ = now;
  return actors::Heads{now, moved};
}

}  // namespace shoal::scheduler
