#include "scheduler/node/metrics/reported_metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>

#include "actors/protocol/cluster/metric_name.h"

namespace shoal::scheduler {

using actors::MetricFamily;
using actors::MetricKind;
using actors::MetricSample;

namespace {

// True for UTF-8 by RFC 3629: shortest forms only, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    if (first < 0x80) continue;
    const std::size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || text.size() - i < more) return false;
    unsigned low = 0x80, high = 0xBF;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    for (std::size_t end = i + more; i < end; ++i, low = 0x80, high = 0xBF) {
      const auto c = static_cast<unsigned char>(text[i]);
      if (c < low || c > high) return false;
    }
  }
  return true;
}

bool may_report(const MetricFamily& family) {
  static const std::map<std::string_view, MetricKind> kOfTasks = {{"shoal_tasks", MetricKind::kLevel},
                                                                  {"shoal_tasks_unanswered", MetricKind::kLevel},
                                                                  {"shoal_tasks_ended_total", MetricKind::kCounter}};
  if (const auto ours = kOfTasks.find(family.name); ours != kOfTasks.end()) return ours->second == family.kind;
  if (!actors::is_metric_name(family.name) || !family.name.starts_with(actors::kUserMetrics) || family.name.size() > kMaxLabelBytes) {
    return false;
  }
  const auto finite = [](double b) { return std::isfinite(b); };
  const auto& bounds = family.bounds;
  return std::all_of(bounds.begin(), bounds.end(), finite) &&
         std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
}

bool are_readable(const MetricSample::Labels& labels) {  // the labels are sorted by name
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  return std::adjacent_find(labels.begin(), labels.end(), same_name) == labels.end() &&
         std::all_of(labels.begin(), labels.end(), [](const auto& label) {
           return actors::is_label_name(label.first) && !actors::is_label_of_ours(label.first) && is_utf8(label.second);
         });
}

}  // namespace

std::size_t leave_unreadable(std::vector<MetricFamily>& families) {
  std::size_t series = 0, bytes = 0, gone = 0;
  for (MetricFamily& family : families) {
    if (family.help.size() > kMaxLabelBytes || !is_utf8(family.help)) family.help.clear();
    const bool may = may_report(family);
    const std::size_t size = std::max<std::size_t>(family.kind == MetricKind::kHistogram ? family.bounds.size() + 1 : 0, 1);
    gone += std::erase_if(family.samples, [&](MetricSample& sample) {
      std::size_t long_ = 0;
      for (const auto& [name, value] : sample.labels) long_ += name.size() + value.size();
      if (!may || long_ > kMaxLabelBytes || series + size > kMaxReportedSeries || bytes + long_ > kMaxReportedLabelBytes) return true;
      std::sort(sample.labels.begin(), sample.labels.end());
      if (!are_readable(sample.labels)) return true;
      series += size;
      bytes += long_;
      return false;
    });
  }
  std::erase_if(families, [](const MetricFamily& family) { return family.samples.empty(); });
  return gone;
}

}  // namespace shoal::scheduler
