// A node's answers to inspections of itself and of its processes. The reasons for this design are in
// docs/decisions/metrics-are-collected-on-each-scrape.md and docs/decisions/processes-answer-inspections-on-request.md.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "scheduler/node/inspection.h"
#include "scheduler/node/metrics/metrics_book.h"
#include "scheduler/node/metrics/usage_places.h"
#include "scheduler/node/objects/objects.h"
#include "scheduler/node/processes/workers.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class NodeReports {
 public:
  using Measured = std::function<void(std::vector<actors::MetricFamily>)>;
  // Measures the machine, and calls back later, on the loop. Empty: reports have no metrics of the machine.
  using Measure = std::function<void(Measured)>;

  NodeReports(runtime::Clock& clock, const Workers& workers, const storage::MemoryTable& memory, const Objects& objects,
              const UsagePlaces& usage, Measure measure)
      : clock_(clock), workers_(workers), memory_(memory), objects_(objects), usage_(usage), measure_(std::move(measure)) {}
  ~NodeReports() { *alive_ = false; }

  MetricsBook& metrics() { return metrics_; }
  // Answers an inspection. `begun`: the report, which has only the node's id and pid so far.
  void inspect(actors::NodeReport begun, const actors::Inspect& request, runtime::Responder responder);

 private:
  void measure(Inspection& inspection);
  // Replaces the rows of processes in a report by metrics: of the node, of its machine and of all processes.
  void add_metrics(actors::NodeReport& report, std::vector<actors::MetricFamily> machine) const;
  std::vector<actors::MetricFamily> own_metrics() const;

  runtime::Clock& clock_;
  const Workers& workers_;
  const storage::MemoryTable& memory_;
  const Objects& objects_;
  const UsagePlaces& usage_;
  const Measure measure_;
  MetricsBook metrics_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
