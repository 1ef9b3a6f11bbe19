#include "scheduler/web/metrics.h"

namespace shoal::scheduler::web {

using actors::from_bytes;
using actors::Inspect;
using actors::ListReply;
using actors::MetricFamily;
using actors::ToldMetrics;
using actors::ToldNode;
using runtime::Message;

void Metrics::ask(Families told) {
  if (kept_ && clock_.now() < kept_since_ + options_.keep) return told(*kept_);
  kept_.reset();
  asked_.push_back(std::move(told));
  if (asked_.size() > 1) return;
  const auto pull = std::make_shared<Pull>();
  pull->began = clock_.now();
  gateway_.ask(actors::kInspect, to_bytes(Inspect{Inspect::What::kMetrics}), [this, pull](Result<Message> r) {
    auto of_head = r ? from_bytes<ToldMetrics>(r->payload) : Result<ToldMetrics>(fail(r.error()));
    if (!of_head) return finish(fail(of_head.error()));
    pull->of_head = std::move(of_head->metrics);
    gateway_.list(actors::ListRequest::What::kNodes, {}, [this, pull](Result<ListReply> rows) {
      if (!rows) return finish(fail(rows.error()));
      ask_nodes(pull, rows->nodes);
    });
  });
}

void Metrics::ask_nodes(const std::shared_ptr<Pull>& pull, const std::vector<actors::NodeRow>& nodes) {
  const auto answered = [this, pull] {
    if (--pull->waiting > 0) return;
    const auto seconds = std::chrono::duration<double>(clock_.now() - pull->began).count();
    finish(of_cluster(pull->of_head, pull->of_nodes, seconds));
  };
  pull->waiting = 1;  // until all are asked
  for (const auto& row : nodes) {
    if (row.state != actors::NodeState::kAlive) continue;
    const std::size_t i = pull->of_nodes.size();
    pull->of_nodes.push_back({row.id, row.host, std::nullopt});
    ++pull->waiting;
    gateway_.ask_node(row.endpoint, actors::kInspect, to_bytes(Inspect{Inspect::What::kMetrics}), options_.patience,
                      [pull, i, answered](Result<Message> r) {
                        auto told = r ? from_bytes<ToldNode>(r->payload) : Result<ToldNode>(fail(r.error()));
                        if (told) pull->of_nodes[i].families = std::move(told->metrics);
                        answered();
                      });
  }
  answered();
}

void Metrics::finish(Result<std::vector<MetricFamily>> all) {
  if (all) {
    kept_ = *all;
    kept_since_ = clock_.now();
  }
  for (const auto& told : std::exchange(asked_, {})) told(all);
}

}  // namespace shoal::scheduler::web
