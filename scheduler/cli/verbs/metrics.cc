// metrics: the cluster's metrics in Prometheus' text format, and the scrape configuration for Prometheus.
#include <cstdio>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/web/metrics.h"

namespace shoal::scheduler::cli {

using actors::MetricFamily;
using nlohmann::json;

namespace {

json family_json(const MetricFamily& family) {
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram", "gauge"};
  json samples = json::array();
  for (const auto& s : family.samples) {
    json sample = {{"labels", json(std::map<std::string, std::string>(s.labels.begin(), s.labels.end()))}};
    sample[s.counts.empty() ? "value" : "sum"] = s.value;
    if (!s.counts.empty()) sample["counts"] = s.counts;
    samples.push_back(std::move(sample));
  }
  json out = {{"name", family.name}, {"type", kTypes[actors::number(family.kind)]}, {"help", family.help}, {"samples", samples}};
  if (!family.bounds.empty()) out["bounds"] = family.bounds;
  return out;
}

int metrics(const Common& common) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  Context& context = *cluster->context;
  const auto status = cluster->head->request_for<actors::ClusterStatus>(actors::Method::kStatus, {});
  if (!status) return failed(common, status.error());
  const auto head = runtime::parse_endpoint(status->heads.empty() ? cluster->endpoint : status->heads.front());
  if (!head) return failed(common, head.error());
  web::Gateway gateway(*context.clock, context.network, {.head = *head, .logs = cluster->logs});
  web::Metrics metrics(gateway, *context.clock);
  std::optional<Result<std::shared_ptr<const web::Metrics::Scrape>>> all;
  metrics.collect([&](const auto& reported) { all.emplace(reported); });
  context.run_until([&] { return all.has_value(); }, std::chrono::seconds(30));
  if (!all) return failed(common, deadline_exceeded("the cluster did not answer in time"));
  if (!*all) return failed(common, all->error());
  if (common.json) {
    json families = json::array();
    for (const auto& family : (**all)->families) families.push_back(family_json(family));
    const json out = {{"schema", "shoal.metrics/1"}, {"families", families}};
    print_json(out);
  } else {
    print_bytes(stdout, (**all)->text);
  }
  return kOk;
}

int scrape_config(const Common& common) {
  const auto found = find_cluster(common.target, false);
  if (!found) return failed(common, found.error());
  const auto info = found->folder ? found->folder->info() : Result<actors::SessionInfo>(fail(not_found("")));
  if (!info || info->http.empty()) {
    const Error none = not_found("this host has no HTTP interface of the cluster, which is where Prometheus reads it");
    return failed(common,
                  Error(none).with_hint("run this on the head's host; the cluster has to be started with --include-dashboard true"));
  }
  const auto& folder = *found->folder;
  if (common.json) {
    const json out = {{"schema", "shoal.scrape_config/1"},
                      {"url", info->http + "/metrics"},
                      {"token_file", folder.http_token_file()},
                      {"targets_file", folder.metrics_targets_file()}};
    print_json(out);
    return kOk;
  }
  // Paths are JSON strings, which are valid YAML.
  print(stdout,
        "scrape_configs:\n"
        "  - job_name: shoal\n"
        "    authorization:\n"
        "      type: Bearer\n"
        "      credentials_file: {}\n"
        "    file_sd_configs:\n"
        "      - files: [{}]\n",
        json_text(folder.http_token_file()), json_text(folder.metrics_targets_file()));
  return kOk;
}

}  // namespace

void add_metrics(CommandLine& line) {
  auto& for_prometheus = line.own(false);
  auto* verb = line.add_verb("metrics", "Print the metrics of the cluster and of programs, in Prometheus' format");
  verb->add_flag("--scrape-config", for_prometheus, "Print the configuration with which Prometheus reads this cluster's metrics");
  line.on_run(verb, [&for_prometheus](const Common& common) { return for_prometheus ? scrape_config(common) : metrics(common); });
}

}  // namespace shoal::scheduler::cli
