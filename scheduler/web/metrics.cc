#include "scheduler/web/metrics.h"

namespace shoal::scheduler::web {

using actors::from_bytes;
using actors::Inspect;
using actors::ListReply;
using actors::NodeReport;
using actors::ReportedMetrics;
using runtime::Message;

void Metrics::collect(Callback reported) {
  if (kept_ && clock_.now() < kept_since_ + options_.keep) return reported(kept_);
  kept_.reset();
  callbacks_.push_back(std::move(reported));
  if (callbacks_.size() > 1) return;
  const auto pull = std::make_shared<Pull>();
  pull->began = clock_.now();
  gateway_.call_head(actors::Method::kInspect, to_bytes(Inspect{Inspect::What::kMetrics}), [this, alive = alive_, pull](Result<Message> r) {
    if (!*alive) return;
    if (!r) return finish(fail(r.error()));
    pull->of_head = std::move(r->payload);
    gateway_.list(actors::ListRequest::What::kNodes, {}, [this, alive, pull](Result<ListReply> rows) {
      if (!*alive) return;
      if (!rows) return finish(fail(rows.error()));
      call_nodes(pull, rows->nodes);
    });
  });
}

void Metrics::call_nodes(const std::shared_ptr<Pull>& pull, const std::vector<actors::NodeRow>& nodes) {
  const auto answered = [this, pull] {
    if (--pull->waiting > 0) return;
    const auto scrape = std::make_shared<Result<std::shared_ptr<const Scrape>>>();
    auto work = [pull, scrape, seconds = std::chrono::duration<double>(clock_.now() - pull->began).count()] {
      *scrape = scrape_of(*pull, seconds);
    };
    auto then = [this, alive = alive_, scrape] {
      if (*alive) finish(std::move(*scrape));
    };
    if (options_.aside) return options_.aside(std::move(work), std::move(then));
    work();
    then();
  };
  pull->waiting = 1;  // one more while the loop below still asks nodes, so that early answers do not end the pull
  for (const auto& row : nodes) {
    if (row.state != actors::NodeState::kAlive) continue;
    ++pull->waiting;
    gateway_.call_node(row.endpoint, actors::Method::kInspect, to_bytes(Inspect{Inspect::What::kMetrics}), options_.patience,
                       [alive = alive_, pull, id = row.id, host = row.host, answered](Result<Message> r) {
                         if (!*alive) return;
                         auto reported = r ? from_bytes<NodeReport>(r->payload) : Result<NodeReport>(fail(r.error()));
                         if (reported)
                           pull->sums.of_node(id, host, reported->metrics);
                         else
                           pull->sums.silent();
                         answered();
                       });
  }
  answered();
}

Result<std::shared_ptr<const Metrics::Scrape>> Metrics::scrape_of(Pull& pull, double seconds) {
  SHOAL_TRY(const auto of_head, from_bytes<ReportedMetrics>(pull.of_head));
  pull.sums.of_head(of_head.metrics);
  const auto out = std::make_shared<Scrape>();
  out->families = pull.sums.families(seconds);
  out->text = exposition(out->families);
  return std::shared_ptr<const Scrape>(out);
}

void Metrics::finish(Result<std::shared_ptr<const Scrape>> all) {
  if (all) {
    kept_ = *all;
    kept_since_ = clock_.now();
  }
  for (const auto& reported : std::exchange(callbacks_, {})) reported(all);
}

}  // namespace shoal::scheduler::web
