#include "scheduler/node/processes/devices.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "actors/protocol/cluster/resources.h"

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

std::optional<std::vector<std::string>> visible_devices(const char* visible) {
  if (visible == nullptr) return std::nullopt;
  std::vector<std::string> out;
  std::istringstream names(std::string(visible) == "NoDevFiles" ? "" : visible);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::remove_if(name.begin(), name.end(), [](unsigned char c) { return std::isspace(c); }), name.end());
    if (!name.empty()) out.push_back(name);
  }
  return out;
}

std::size_t count_devices(const std::string& folder, const char* visible) {
  std::size_t there = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string device = entry.path().filename();
    there += device.starts_with("nvidia") && device.size() > 6 && device.find_first_not_of("0123456789", 6) == std::string::npos;
  }
  const auto seen = visible_devices(visible);
  if (!seen) return there;
  // A device has several slices (MIG), which are opened by their names alone.
  const auto slices =
      static_cast<std::size_t>(std::count_if(seen->begin(), seen->end(), [](const auto& s) { return s.starts_with("MIG-"); }));
  return there == 0 ? 0 : slices + std::min(there, seen->size() - slices);
}

Result<std::vector<std::string>> device_ids(std::int64_t count, const char* visible) {
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  auto out = visible_devices(visible);
  if (!out) {
    out.emplace();
    for (std::size_t i = 0; i < wanted; ++i) out->push_back(std::to_string(i));
  }
  if (out->size() < wanted) {
    return fail(invalid_argument(std::to_string(wanted) + " GPUs were asked for, but CUDA_VISIBLE_DEVICES lists " +
                                 std::to_string(out->size()) + " (\"" + visible + "\")")
                    .with_reason("DevicesHidden")
                    .with_hint("offer fewer GPUs, list more in it, or unset it"));
  }
  out->resize(wanted);
  return *std::move(out);
}

std::string accelerator_type(const std::string& model) {
  std::istringstream words(model);
  std::string word;
  words >> word;  // skips the first word: the maker or the product line
  while (words >> word) {
    const auto upper = [](unsigned char c) { return std::isupper(c) || std::isdigit(c); };
    const std::string name(word.begin(), std::find_if_not(word.begin(), word.end(), upper));
    if (name.size() > 1 && std::any_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); })) return name;
  }
  return "";
}

}  // namespace shoal::scheduler
