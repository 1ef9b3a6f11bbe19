#include "scheduler/cli/inspection/device_rows.h"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

constexpr std::string_view kPrefix = "shoal_node_gpu_", kSlicePrefix = "slice_";

std::string label(const actors::MetricSample& sample, std::string_view name) {
  for (const auto& [key, value] : sample.labels) {
    if (key == name) return value;
  }
  return "";
}

std::uint64_t whole(double value) { return value > 0 ? static_cast<std::uint64_t>(value) : 0; }

json new_row(const actors::NodeReport& node, const std::string& host, unsigned gpu) {
  return {{"node", to_string(node.node)},
          {"host", host},
          {"gpu", gpu},
          {"name", ""},
          {"uuid", ""},
          {"memory_used_bytes", 0},
          {"memory_total_bytes", 0},
          {"utilization", 0.0},
          {"processes", 0},
          {"faults", json::array()},
          {"slices", json::array()}};
}

// The row of a slice in `slices`, which is made with its first series.
json& slice_in(json& slices, const actors::MetricSample& sample) {
  const auto uuid = label(sample, "uuid");
  for (auto& slice : slices) {
    if (slice["uuid"] == uuid) return slice;
  }
  slices.push_back({{"name", label(sample, "slice_name")}, {"uuid", uuid}, {"memory_used_bytes", 0}, {"memory_total_bytes", 0}});
  return slices.back();
}

// Puts one sample into its device's row. `name`: the metric's, behind kPrefix.
void add(json& row, std::string_view name, const actors::MetricSample& sample) {
  const bool of_slice = name.starts_with(kSlicePrefix);
  if (name == "fault") {
    row["uuid"] = label(sample, "uuid");
    return row["faults"].push_back(label(sample, "kind"));
  }
  json& at = of_slice ? slice_in(row["slices"], sample) : row;
  if (!of_slice) {
    row["uuid"] = label(sample, "uuid");
    row["name"] = label(sample, "gpu_name");
  }
  const auto of = of_slice ? name.substr(kSlicePrefix.size()) : name;
  if (of == "memory_used_bytes" || of == "memory_total_bytes") at[std::string(of)] = whole(sample.value);
  if (of == "utilization_ratio") at["utilization"] = sample.value;
  if (of == "processes") at["processes"] = whole(sample.value);
}

std::string use_of(const json& row) {
  return fmt::format("{} of {}", bytes_text(row["memory_used_bytes"].get<std::uint64_t>()),
                     bytes_text(row["memory_total_bytes"].get<std::uint64_t>()));
}

}  // namespace

json device_rows(const InspectionReply& reported) {
  std::map<std::tuple<std::string, NodeId, unsigned>, json> rows;
  for (const auto& node : reported.nodes) {
    const auto named = reported.hosts.find(node.node);
    const auto host = named == reported.hosts.end() ? "" : named->second;
    for (const auto& family : node.metrics) {
      if (!family.name.starts_with(kPrefix)) continue;
      for (const auto& sample : family.samples) {
        const auto number = label(sample, "gpu");
        if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos) continue;
        const auto gpu = static_cast<unsigned>(std::stoul(number));
        auto& row = rows.try_emplace({host, node.node, gpu}, new_row(node, host, gpu)).first->second;
        add(row, std::string_view(family.name).substr(kPrefix.size()), sample);
      }
    }
  }
  json out = json::array();
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  return out;
}

std::string device_line(const json& row) {
  const auto text = [&](const char* name) { return row[name].get<std::string>(); };
  std::string out = fmt::format("{}  gpu {}  {}", text("host"), row["gpu"].get<unsigned>(), text("name"));
  if (row["memory_total_bytes"].get<std::uint64_t>() > 0) {
    out += fmt::format("  {}, {:.0f} % busy, {} processes", use_of(row), 100 * row["utilization"].get<double>(),
                       row["processes"].get<std::uint64_t>());
  }
  for (const auto& slice : row["slices"]) out += fmt::format("; slice {} {}", slice["uuid"].get<std::string>(), use_of(slice));
  const auto faults = row["faults"].get<std::vector<std::string>>();
  if (!faults.empty()) out += fmt::format("; faults: {} (shoal doctor on that host)", fmt::join(faults, ", "));
  return out;
}

}  // namespace shoal::scheduler::cli
