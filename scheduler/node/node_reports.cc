#include "scheduler/node/node_reports.h"

#include <map>
#include <set>

namespace shoal::scheduler {

namespace {
constexpr const char* kRuntimeEnv = "SHOAL_RUNTIME_ENV";  // set by python/shoal/_runtime_env/environment.py
}  // namespace

void NodeReports::inspect(actors::NodeReport begun, const actors::Inspect& request, runtime::Responder responder) {
  if (const auto board = usage_.board()) {
    begun.kept_bytes = board->total().kept;
    begun.spilled_bytes = board->total().spilled;
    begun.limit_bytes = board->limit();
  }
  if (request.what == actors::Inspect::What::kObjects) begun.objects = report_objects(memory_, objects_.references());
  if (request.what == actors::Inspect::What::kEnvironments) {
    std::map<std::string, std::uint32_t> counts;
    for (const auto& [id, w] : workers_.all()) {
      for (const auto& [name, value] : w.spec.launch.env) {
        if (name == kRuntimeEnv && value != "{}") ++counts[value];
      }
    }
    for (const auto& [text, processes] : counts) begun.environments.push_back({text, processes});
  }
  const auto inspection = std::make_shared<Inspection>(std::move(begun), request, std::move(responder));
  if (request.what == actors::Inspect::What::kMetrics) measure(*inspection);
  for (const auto& [id, w] : workers_.all()) {
    if (w.peer == nullptr || request.what == actors::Inspect::What::kEnvironments) continue;
    inspection->request_report(*w.peer, {id, w.spec.job, w.pid, w.role, {}, {}, 0, {}});
  }
  inspection->sent_to_all();
}

void NodeReports::measure(Inspection& inspection) {
  const auto received = [this, alive = alive_](actors::ProcessReport& process) {
    // The metrics of a process that has ended meanwhile are final, so its answer is ignored.
    if (*alive && workers_.contains(process.worker)) {
      metrics_.reported(process.worker, {process.job, process.role, process.pid}, std::move(process.metrics));
    }
    process.metrics.clear();
  };
  const auto machine = std::make_shared<std::vector<actors::MetricFamily>>();
  const auto all = [this, alive = alive_, machine](actors::NodeReport& report) {
    if (*alive) add_metrics(report, std::move(*machine));
  };
  inspection.pass_through(received, all);
  if (!measure_) return;
  // The wait ends with the measurement, or with its time limit if that comes first.
  const auto measured_once = std::make_shared<std::function<void()>>(inspection.expect());
  const auto finish = [measured_once] {
    if (const auto once = std::exchange(*measured_once, {})) once();
  };
  const auto late = std::make_shared<runtime::Timer>(clock_.after(Inspection::kMetricsPatience, finish));
  measure_([machine, finish, late](std::vector<actors::MetricFamily> measured) {
    *late = {};
    *machine = std::move(measured);
    finish();
  });
}

void NodeReports::add_metrics(actors::NodeReport& report, std::vector<actors::MetricFamily> machine) const {
  std::set<WorkerId> silent;
  for (const auto& process : report.processes) {
    if (process.silent) silent.insert(process.worker);
  }
  report.processes.clear();
  report.metrics = own_metrics();
  std::move(machine.begin(), machine.end(), std::back_inserter(report.metrics));
  const auto sums = metrics_.sums(silent);
  auto of_processes = sums.families();
  std::move(of_processes.begin(), of_processes.end(), std::back_inserter(report.metrics));
  using actors::FamilyOf;
  report.metrics.push_back(
      FamilyOf(actors::MetricKind::kGauge, "shoal_node_silent_processes",
               "Processes that did not answer this scrape in time: their gauges are missing, their counters are older.")
          .add(static_cast<double>(silent.size())));
  report.metrics.push_back(FamilyOf(actors::MetricKind::kGauge, "shoal_node_left_out_series",
                                    "Series of this scrape that could not be added up (several kinds under one name), or are too many.")
                               .add(static_cast<double>(sums.left_out())));
  report.metrics.push_back(FamilyOf(actors::MetricKind::kCounter, "shoal_node_refused_samples_total",
                                    "Samples that processes reported and Prometheus could not read: names, labels, too long, too many.")
                               .add(static_cast<double>(metrics_.left_out())));
}

std::vector<actors::MetricFamily> NodeReports::own_metrics() const {
  using actors::MetricFamily;
  const auto gauge = [](const char* name, const char* help, auto value) -> MetricFamily {
    return actors::FamilyOf(actors::MetricKind::kGauge, name, help).add(static_cast<double>(value));
  };
  std::vector<MetricFamily> out = {
      gauge("shoal_node_processes", "Workers and drivers on the node.", workers_.all().size()),
      gauge("shoal_object_store_objects", "Objects, and arenas of meshes, that the node keeps for its processes.", memory_.num_entries())};
  if (const auto board = usage_.board()) {
    out.push_back(gauge("shoal_object_store_used_bytes", "Memory that large values of the node's processes take.", board->total().kept));
    out.push_back(gauge("shoal_object_store_spilled_bytes", "Large values that were moved to files.", board->total().spilled));
    out.push_back(gauge("shoal_object_store_limit_bytes", "Memory that they may take before some are moved to files.", board->limit()));
  }
  return out;
}

}  // namespace shoal::scheduler
