#include "scheduler/cli/inspection/ask_nodes.h"

namespace shoal::scheduler::cli {

using actors::Inspect;
using actors::ListRequest;
using actors::NodeReport;

namespace {

constexpr runtime::Duration kPatience = std::chrono::seconds(6);  // time limit per node; a node's own limit for its processes is shorter

struct Asked {
  NodeId node;
  std::unique_ptr<Client> client;
  std::optional<Result<runtime::Message>> answer;
};

}  // namespace

Result<InspectionReply> ask_nodes(ClusterConnection& cluster, Inspect::What what) {
  InspectionReply out;
  SHOAL_TRY(const auto rows, cluster.head->list(ListRequest::What::kNodes));
  std::vector<Asked> asked;
  for (const auto& row : rows.nodes) {
    if (row.state != actors::NodeState::kAlive) continue;
    out.hosts[row.id] = row.host;
    auto client = Client::connect(*cluster.context, row.endpoint, runtime::Duration(0));
    if (!client) {
      out.silent.push_back({row.id, {}, row.pid, client.error().message()});
      continue;
    }
    asked.push_back({row.id, *std::move(client), {}});
  }
  std::size_t waiting = asked.size();
  for (auto& a : asked) {
    a.client->ask_later(actors::Method::kInspect, to_bytes(Inspect{what}), kPatience, [&a, &waiting](Result<runtime::Message> answer) {
      a.answer.emplace(std::move(answer));
      --waiting;
    });
  }
  cluster.context->run_until([&] { return waiting == 0; }, kPatience + std::chrono::seconds(1));
  for (auto& a : asked) {
    a.client.reset();  // fails the calls that are still pending
    auto reported = !a.answer    ? Result<NodeReport>(fail(deadline_exceeded("it did not answer in time")))
                    : !*a.answer ? Result<NodeReport>(fail(a.answer->error()))
                                 : actors::from_bytes<NodeReport>((*a.answer)->payload);
    if (!reported) {
      out.silent.push_back({a.node, {}, 0, reported.error().message()});
      continue;
    }
    out.left_out += reported->left_out;
    for (const auto& p : reported->processes) {
      out.left_out += p.left_out;
      out.forgotten += p.forgotten;
      if (p.silent) out.silent.push_back({a.node, p.worker, p.pid, p.silent->message()});
    }
    out.nodes.push_back(*std::move(reported));
  }
  if (what == Inspect::What::kTasks) {
    SHOAL_TRY(auto actors, cluster.head->list(ListRequest::What::kActors));
    for (auto& row : actors.actors) out.actors.emplace(row.id, std::move(row));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
