// Collects the metrics of the head, the nodes and their processes, on request only.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "runtime/core/bytes.h"
#include "scheduler/web/exposition.h"
#include "scheduler/web/gateway.h"

namespace shoal::scheduler::web {

class Metrics {
 public:
  struct Options {
    runtime::Duration patience = std::chrono::seconds(4);  // time limit per node; a node's own limit for its processes is shorter
    runtime::Duration keep = std::chrono::seconds(1);      // how long the last answer serves later requests
    // Runs `work` in a thread of its own, then `then` on the loop, as runtime::SideWork does: a large cluster's text takes long. If it is
    // empty, the loop waits.
    std::function<void(std::function<void()> work, std::function<void()> then)> aside = {};
  };
  // The clock outlives this object. A gateway that ends later fails its pending requests; these answers are ignored.
  Metrics(Gateway& gateway, runtime::Clock& clock) : Metrics(gateway, clock, Options()) {}
  Metrics(Gateway& gateway, runtime::Clock& clock, Options options) : gateway_(gateway), clock_(clock), options_(options) {}
  ~Metrics() { *alive_ = false; }
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  struct Scrape {
    std::vector<actors::MetricFamily> families;
    std::string text;  // the families in Prometheus' text format
  };
  using Callback = std::function<void(const Result<std::shared_ptr<const Scrape>>&)>;
  // Metrics of the whole cluster. Requests that arrive during a round of requests to the nodes (Pull) share its result. No callback runs
  // after destruction.
  void collect(Callback reported);

 private:
  // One round of requests to all nodes.
  struct Pull {
    Bytes of_head;  // ReportedMetrics
    ClusterMetrics sums;
    std::size_t waiting = 0;  // number of nodes without an answer yet
    runtime::TimePoint began;
  };
  void call_nodes(const std::shared_ptr<Pull>& pull, const std::vector<actors::NodeRow>& nodes);
  static Result<std::shared_ptr<const Scrape>> scrape_of(Pull& pull, double seconds);
  void finish(Result<std::shared_ptr<const Scrape>> all);

  Gateway& gateway_;
  runtime::Clock& clock_;
  const Options options_;
  std::vector<Callback> callbacks_;
  std::shared_ptr<const Scrape> kept_;
  runtime::TimePoint kept_since_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler::web
