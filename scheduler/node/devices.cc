#include "scheduler/node/devices.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "actors/cluster/resources.h"

namespace shoal::scheduler {

using actors::Resources;

Devices::Devices(std::vector<std::string> ids) : ids_(std::move(ids)), free_(ids_.size(), Resources::kUnit) {}

std::vector<std::string> Devices::take(WorkerId worker, std::int64_t units) {
  auto& held = holdings_[worker];
  while (units > 0 && held.size() < ids_.size()) {
    const std::int64_t want = std::min(units, Resources::kUnit);
    std::size_t best = ids_.size();
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (std::any_of(held.begin(), held.end(), [&](const auto& h) { return h.first == i; })) continue;
      if (best == ids_.size()) {
        best = i;
        continue;
      }
      const bool fits = free_[i] >= want, best_fits = free_[best] >= want;
      if (fits != best_fits ? fits : fits ? free_[i] < free_[best] : free_[i] > free_[best]) best = i;
    }
    free_[best] -= want;
    held.emplace_back(best, want);
    units -= want;
  }
  std::vector<std::string> out;
  for (const auto& [device, share] : held) out.push_back(ids_[device]);
  return out;
}

void Devices::give_back(WorkerId worker) {
  const auto held = holdings_.extract(worker);
  if (held.empty()) return;
  for (const auto& [device, share] : held.mapped()) free_[device] += share;
}

std::vector<std::string> device_ids(std::int64_t count, const char* visible) {
  std::vector<std::string> out;
  std::istringstream names(visible ? visible : "");
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::remove_if(name.begin(), name.end(), [](unsigned char c) { return std::isspace(c); }), name.end());
    if (!name.empty()) out.push_back(name);
  }
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (out.size() < wanted) {  // it offers more than it sees: whoever says so knows best
    out.clear();
    for (std::size_t i = 0; i < wanted; ++i) out.push_back(std::to_string(i));
  }
  out.resize(wanted);
  return out;
}

std::string accelerator_type(const std::string& model) {
  std::istringstream words(model);
  std::string word;
  words >> word;  // the maker, or the line
  while (words >> word) {
    const auto upper = [](unsigned char c) { return std::isupper(c) || std::isdigit(c); };
    const std::string name(word.begin(), std::find_if_not(word.begin(), word.end(), upper));
    if (name.size() > 1 && std::any_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); })) return name;
  }
  return "";
}

}  // namespace shoal::scheduler
