#include "scheduler/cli/inspection/inspect_nodes.h"

#include <algorithm>

#include "scheduler/web/gateway.h"

namespace shoal::scheduler::cli {

using actors::Inspect;
using actors::ListRequest;
using actors::NodeReport;

namespace {

constexpr runtime::Duration kPatience = std::chrono::seconds(6);  // time limit per node; a node's own limit for its processes is shorter

}  // namespace

Result<InspectionReply> inspect_nodes(ClusterConnection& cluster, Inspect::What what) {
  InspectionReply out;
  SHOAL_TRY(const auto rows, cluster.head->list(ListRequest::What::kNodes));
  SHOAL_TRY(const auto head, runtime::parse_endpoints(cluster.endpoint));
  {
    web::Gateway gateway(*cluster.context->clock, cluster.context->network, {.head = head.front(), .logs = cluster.logs});
    std::size_t waiting = 0;
    for (const auto& row : rows.nodes) {
      if (row.state != actors::NodeState::kAlive) continue;
      out.hosts[row.id] = row.host;
      ++waiting;
      gateway.call_node(row.endpoint, actors::Method::kInspect, to_bytes(Inspect{what}), kPatience,
                        [&out, &waiting, &row](Result<runtime::Message> answer) {
                          --waiting;
                          auto reported =
                              answer ? actors::from_bytes<NodeReport>(answer->payload) : Result<NodeReport>(fail(answer.error()));
                          if (!reported) return out.silent.push_back({row.id, {}, answer ? 0 : row.pid, reported.error().message()});
                          out.left_out += reported->left_out;
                          for (const auto& p : reported->processes) {
                            out.left_out += p.left_out;
                            out.forgotten += p.forgotten;
                            if (p.silent) out.silent.push_back({row.id, p.worker, p.pid, p.silent->message()});
                          }
                          out.nodes.push_back(*std::move(reported));
                        });
    }
    cluster.context->run_until([&] { return waiting == 0; }, 3 * kPatience);
  }
  std::sort(out.nodes.begin(), out.nodes.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  if (what == Inspect::What::kTasks) {
    SHOAL_TRY(auto actors, cluster.head->list(ListRequest::What::kActors));
    for (auto& row : actors.actors) out.actors.emplace(row.id, std::move(row));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
