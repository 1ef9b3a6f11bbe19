#include "scheduler/web/exposition.h"

#include <prometheus-cpp-dev.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <iterator>
#include <limits>

#include "actors/protocol/cluster/metric_name.h"
#include "runtime/core/printable.h"

namespace shoal::scheduler::web {

using actors::MetricFamily;
using actors::MetricKind;

namespace {

// Escapes HELP text, which the library does not.
std::string escaped(const std::string& help) {
  std::string out;
  for (const char c : printable_lines(help)) out += c == '\n' ? std::string("\\n") : c == '\\' ? std::string("\\\\") : std::string(1, c);
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

void ClusterMetrics::of_head(const std::vector<MetricFamily>& families) {
  for (const auto& family : families) ours_.add(family);
}

void ClusterMetrics::of_node(NodeId node, const std::string& host, const std::vector<MetricFamily>& families) {
  const actors::MetricSample::Labels labels = {{"host", host}, {"node", to_string(node)}};
  for (const auto& family : families) (family.name.starts_with(actors::kUserMetrics) ? of_users_ : ours_).add(family, labels);
}

std::vector<MetricFamily> ClusterMetrics::families(double seconds) {
  using actors::FamilyOf;
  const auto left_out = static_cast<double>(ours_.left_out() + of_users_.left_out());
  ours_.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_duration_seconds", "What asking head, nodes and processes took.").add(seconds));
  ours_.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_silent_nodes",
                     "Nodes that did not answer this scrape in time: all their series are missing.")
                .add(static_cast<double>(silent_)));
  ours_.add(FamilyOf(MetricKind::kGauge, "shoal_scrape_left_out_series",
                     "Series that do not go with those of other nodes (several kinds under one name), or are too many.")
                .add(left_out));
  auto out = ours_.families();
  auto of_users = of_users_.families();
  std::move(of_users.begin(), of_users.end(), std::back_inserter(out));
  return out;
}

std::string exposition(const std::vector<MetricFamily>& families) {
  std::vector<prometheus::MetricFamily> out;
  for (const MetricFamily& family : families) {
    if (family.samples.empty()) continue;
    if (out.empty() || out.back().name != family.name) {
      out.push_back({family.name, escaped(family.help), type_of(family.kind), {}});
    }
    auto& reported = out.back();
    for (const auto& sample : family.samples) {
      auto& metric = reported.metric.emplace_back();
      for (const auto& [name, value] : sample.labels) metric.label.push_back({name, printable_lines(value)});
      metric.counter.value = metric.gauge.value = sample.value;
      if (family.kind == MetricKind::kHistogram) metric.histogram = histogram(family, sample);
    }
  }
  return prometheus::TextSerializer().Serialize(out);
}

}  // namespace shoal::scheduler::web
