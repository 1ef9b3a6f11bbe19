// What the head, the nodes and their processes measure, got together when somebody asks, and only then.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
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
  // The clock outlives it; the gateway may, and may fail what was asked when this is over.
  Metrics(Gateway& gateway, runtime::Clock& clock) : Metrics(gateway, clock, Options()) {}
  Metrics(Gateway& gateway, runtime::Clock& clock, Options options) : gateway_(gateway), clock_(clock), options_(options) {}
  ~Metrics() { *alive_ = false; }
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  struct Scrape {
    std::vector<actors::MetricFamily> families;
    std::string text;  // of them, as Prometheus reads it
  };
  using Told = std::function<void(const Result<std::shared_ptr<const Scrape>>&)>;
  // Of all the cluster. Whoever asks while others wait gets what they get. Not called when this ends before.
  void ask(Told told);

 private:
  // One time that everybody is asked.
  struct Pull {
    ClusterMetrics sums;
    std::size_t waiting = 0;  // for so many nodes
    runtime::TimePoint began;
  };
  void ask_nodes(const std::shared_ptr<Pull>& pull, const std::vector<actors::NodeRow>& nodes);
  void finish(Result<std::shared_ptr<const Scrape>> all);

  Gateway& gateway_;
  runtime::Clock& clock_;
  const Options options_;
  std::vector<Told> asked_;
  std::shared_ptr<const Scrape> kept_;
  runtime::TimePoint kept_since_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler::web
