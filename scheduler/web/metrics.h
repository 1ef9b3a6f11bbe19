// What the head, the nodes and their processes measure, got together when somebody asks, and only then.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/wire/inspection.h"
#include "scheduler/web/exposition.h"
#include "scheduler/web/gateway.h"

namespace shoal::scheduler::web {

class Metrics {
 public:
  struct Options {
    runtime::Duration patience = std::chrono::seconds(4);  // with a node, which has some with its processes
    runtime::Duration keep = std::chrono::seconds(1);      // an answer is given again for so long
  };
  // Gateway and clock outlive it.
  Metrics(Gateway& gateway, runtime::Clock& clock) : Metrics(gateway, clock, Options()) {}
  Metrics(Gateway& gateway, runtime::Clock& clock, Options options) : gateway_(gateway), clock_(clock), options_(options) {}

  using Families = std::function<void(const Result<std::vector<actors::MetricFamily>>&)>;
  // Of all the cluster. Whoever asks while others wait gets what they get.
  void ask(Families told);

 private:
  // One time that everybody is asked.
  struct Pull {
    std::vector<actors::MetricFamily> of_head;
    std::vector<NodeMetrics> of_nodes;
    std::size_t waiting = 0;  // for so many of them
    runtime::TimePoint began;
  };
  void ask_nodes(const std::shared_ptr<Pull>& pull, const std::vector<actors::NodeRow>& nodes);
  void finish(Result<std::vector<actors::MetricFamily>> all);

  Gateway& gateway_;
  runtime::Clock& clock_;
  const Options options_;
  std::vector<Families> asked_;
  std::optional<std::vector<actors::MetricFamily>> kept_;
  runtime::TimePoint kept_since_;
};

}  // namespace shoal::scheduler::web
