#include "scheduler/web/exposition.h"

#include <prometheus-cpp-dev.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>

namespace shoal::scheduler::web {

using actors::MetricFamily;
using actors::MetricKind;

namespace {

// The library leaves that of HELP to its users.
std::string escaped(const std::string& help) {
  std::string out;
  for (const char c : help) out += c == '\n' ? std::string("\\n") : c == '\\' ? std::string("\\\\") : std::string(1, c);
  return out;
}

prometheus::MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
    default:
      return prometheus::MetricType::Gauge;
  }
}

prometheus::ClientMetric::Histogram histogram(const MetricFamily& family, const actors::MetricSample& sample) {
  prometheus::ClientMetric::Histogram out;
  out.sample_sum = sample.value;
  for (std::size_t i = 0; i < sample.counts.size(); ++i) {
    out.sample_count += sample.counts[i];
    out.bucket.push_back({out.sample_count, i < family.bounds.size() ? family.bounds[i] : std::numeric_limits<double>::infinity()});
  }
  return out;
}

}  // namespace

std::vector<MetricFamily> of_cluster(const std::vector<MetricFamily>& of_head, const std::vector<NodeMetrics>& of_nodes, double seconds) {
  using actors::FamilyOf;
  actors::MetricSums sums;
  for (const auto& family : of_head) sums.add(family);
  double silent = 0;
  for (const auto& n : of_nodes) {
    silent += n.families ? 0 : 1;
    for (const auto& family : n.families.value_or(std::vector<MetricFamily>()))
      sums.add(family, {{"host", n.host}, {"node", to_string(n.node)}});
  }
  const auto left_out = static_cast<double>(sums.left_out());
  sums.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_duration_seconds", "What asking head, nodes and processes took.").add(seconds));
  sums.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_silent_nodes",
                    "Nodes that did not answer this scrape in time: all their series are missing.")
               .add(silent));
  sums.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_left_out_series",
                    "Series that do not go with those of other nodes: several kinds or boundaries under one name.")
               .add(left_out));
  return sums.families();
}

std::string exposition(const std::vector<MetricFamily>& families) {
  std::vector<prometheus::MetricFamily> out;
  for (const MetricFamily& family : families) {
    if (family.samples.empty()) continue;
    auto& told = out.emplace_back();
    told.name = family.name;
    told.help = escaped(family.help);
    told.type = type_of(family.kind);
    for (const auto& sample : family.samples) {
      auto& metric = told.metric.emplace_back();
      for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
      metric.counter.value = metric.gauge.value = sample.value;
      if (family.kind == MetricKind::kHistogram) metric.histogram = histogram(family, sample);
    }
  }
  return prometheus::TextSerializer().Serialize(out);
}

}  // namespace shoal::scheduler::web
