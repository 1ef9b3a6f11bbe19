// status, list, logs: what the cluster looks like.
#include <cstdio>

#include <fmt/format.h>

#include "scheduler/cli/commands.h"
#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {

using actors::ListReply;
using actors::ListRequest;
using actors::Method;
using nlohmann::json;

namespace {

struct Looking {
  std::unique_ptr<Context> context;
  std::unique_ptr<Client> head;
};

Result<Looking> look(const Common& common) {
  SHOAL_TRY(const Found found, find_cluster(common.target, false));
  SHOAL_TRY(const runtime::Token token, found.folder.token());
  Looking out;
  out.context = std::make_unique<Context>(token);
  SHOAL_TRY(out.head, Client::connect(*out.context, found.endpoint));
  return out;
}

int failed(const Common& common, const Error& e) {
  print_error(e, common.json);
  return exit_code(e);
}

std::string brief(Id<struct AnyTag> id) { return id.value ? to_string(id).substr(0, 8) : "-"; }
template <class IdType>
std::string short_id(IdType id) {
  return brief(Id<AnyTag>{id.value});
}

std::string first_line(const std::optional<Error>& cause, const std::string& otherwise) {
  if (!cause) return otherwise;
  return cause->message().substr(0, cause->message().find('\n'));
}

std::string attribute_text(const std::map<std::string, std::string>& attributes) {
  std::string out;
  for (const auto& [name, value] : attributes) out += (out.empty() ? "" : " ") + name + "=" + value;
  return out;
}

void print_rows(const ListReply& r, const std::string& what) {
  std::vector<std::vector<std::string>> rows;
  if (what == "actors") {
    for (const auto& a : r.actors) {
      rows.push_back({to_string(a.id), a.class_name, actors::to_string(a.state),
                      a.world_size > 1 ? fmt::format("{}/{}", a.rank, a.world_size) : "-", std::to_string(a.pid), short_id(a.node),
                      std::to_string(a.generation), attribute_text(a.attributes), first_line(a.cause, a.pending_reason)});
    }
    print_table({"ACTOR", "CLASS", "STATE", "RANK", "PID", "NODE", "GENERATION", "ATTRIBUTES", "WHY"}, rows);
  } else if (what == "nodes") {
    for (const auto& n : r.nodes) {
      rows.push_back({to_string(n.id), n.host, to_string(n.state), std::to_string(n.pid), n.available.to_string(), n.total.to_string()});
    }
    print_table({"NODE", "HOST", "STATE", "PID", "FREE", "TOTAL"}, rows);
  } else if (what == "workers") {
    for (const auto& w : r.workers) {
      rows.push_back(
          {to_string(w.id), w.role, to_string(w.state), std::to_string(w.pid), short_id(w.node), short_id(w.job), first_line(w.cause, "")});
    }
    print_table({"WORKER", "ROLE", "STATE", "PID", "NODE", "JOB", "WHY"}, rows);
  } else {
    for (const auto& j : r.jobs) {
      rows.push_back({to_string(j.id), j.name, actors::to_string(j.state), j.num_workers ? std::to_string(j.num_workers) : "-",
                      j.ended_unix_ms ? std::to_string(j.exit_code) : "-", first_line(j.cause, j.pending_reason)});
    }
    print_table({"JOB", "NAME", "STATE", "WORKERS", "EXIT", "WHY"}, rows);
  }
}

}  // namespace

int status(const Common& common) {
  auto looking = look(common);
  if (!looking) return failed(common, looking.error());
  const auto s = looking->head->ask_for<actors::ClusterStatus>(Method::kStatus, {});
  if (!s) return failed(common, s.error());
  if (common.json) {
    std::printf("%s\n", json({{"schema", "shoal.status/1"},
                              {"session", s->session},
                              {"head_pid", s->head_pid},
                              {"total", to_json(s->total)},
                              {"available", to_json(s->available)},
                              {"nodes", s->num_nodes},
                              {"workers", s->num_workers},
                              {"actors", s->num_actors},
                              {"jobs", s->num_jobs},
                              {"pending", s->pending}})
                            .dump()
                            .c_str());
    return kOk;
  }
  std::printf("session  %s (head pid %d)\n", s->session.c_str(), s->head_pid);
  std::printf("nodes    %u\njobs     %u running\nworkers  %u\nactors   %u\n", s->num_nodes, s->num_jobs, s->num_workers, s->num_actors);
  std::printf("total    %s\nfree     %s\n", s->total.to_string().c_str(), s->available.to_string().c_str());
  for (const auto& p : s->pending) std::printf("pending  %s\n", p.c_str());
  return kOk;
}

int list(const Common& common, const std::string& what) {
  auto looking = look(common);
  if (!looking) return failed(common, looking.error());
  const std::map<std::string, ListRequest::What> kinds = {{"actors", ListRequest::What::kActors},
                                                          {"nodes", ListRequest::What::kNodes},
                                                          {"workers", ListRequest::What::kWorkers},
                                                          {"jobs", ListRequest::What::kJobs}};
  const auto r = looking->head->ask_for<ListReply>(Method::kList, to_bytes(ListRequest{kinds.at(what), {}}));
  if (!r) return failed(common, r.error());
  if (!common.json) {
    print_rows(*r, what);
    return kOk;
  }
  json rows = json::array();
  for (const auto& row : r->actors) rows.push_back(to_json(row));
  for (const auto& row : r->nodes) rows.push_back(to_json(row));
  for (const auto& row : r->workers) rows.push_back(to_json(row));
  for (const auto& row : r->jobs) rows.push_back(to_json(row));
  std::printf("%s\n", json({{"schema", "shoal.list/1"}, {"what", what}, {"rows", rows}}).dump().c_str());
  return kOk;
}

namespace {

// Which workers an id means: a job's, an actor's, or itself. "" is the latest job. A prefix will do when it is the only
// one.
Result<std::vector<actors::WorkerRow>> workers_of(Client& head, const std::string& id) {
  SHOAL_TRY(const auto workers, head.ask_for<ListReply>(Method::kList, to_bytes(ListRequest{ListRequest::What::kWorkers, {}})));
  SHOAL_TRY(const auto jobs, head.ask_for<ListReply>(Method::kList, to_bytes(ListRequest{ListRequest::What::kJobs, {}})));
  SHOAL_TRY(const auto actors, head.ask_for<ListReply>(Method::kList, to_bytes(ListRequest{ListRequest::What::kActors, {}})));
  JobId job;
  std::vector<WorkerId> ids;
  if (id.empty()) {
    std::int64_t latest = -1;
    for (const auto& j : jobs.jobs) {
      if (j.started_unix_ms > latest) latest = j.started_unix_ms, job = j.id;
    }
    if (!job) return fail(not_found("no job has run yet"));
  }
  const auto matches = [&](const auto& other) { return !id.empty() && to_string(other).starts_with(id); };
  for (const auto& j : jobs.jobs) {
    if (matches(j.id)) job = j.id;
  }
  for (const auto& a : actors.actors) {
    if (matches(a.id)) ids.push_back(a.worker);
  }
  std::vector<actors::WorkerRow> out;
  for (const auto& w : workers.workers) {
    if ((job && w.job == job) || matches(w.id) || std::find(ids.begin(), ids.end(), w.id) != ids.end()) out.push_back(w);
  }
  if (out.empty()) return fail(not_found("no job, worker or actor " + id).with_hint("see shoal list jobs"));
  return out;
}

std::string last_lines(const std::string& text, std::uint64_t lines) {
  if (lines == 0) return text;
  std::size_t at = text.size();
  for (std::uint64_t n = 0; at > 0; --at) {
    if (text[at - 1] == '\n' && at != text.size() && ++n == lines) break;
  }
  return text.substr(at);
}

}  // namespace

int logs(const Common& common, const LogsOptions& options) {
  auto looking = look(common);
  if (!looking) return failed(common, looking.error());
  const auto workers = workers_of(*looking->head, options.id);
  if (!workers) return failed(common, workers.error());
  const auto nodes = looking->head->ask_for<ListReply>(Method::kList, to_bytes(ListRequest{ListRequest::What::kNodes, {}}));
  if (!nodes) return failed(common, nodes.error());
  json out = json::array();
  for (const auto& node : nodes->nodes) {
    if (node.state != actors::NodeState::kAlive) continue;
    auto client = Client::connect(*looking->context, node.endpoint);
    if (!client) return failed(common, client.error());
    for (const auto& w : *workers) {
      if (w.node != node.id) continue;
      for (const std::uint16_t stream : {1, 2}) {
        const auto text = (*client)->ask(Method::kReadLog, to_bytes(actors::ReadLog{w.id, stream, 16u << 20}));
        if (!text) continue;  // it printed nothing
        const std::string lines = last_lines(std::string(text->payload.view()), options.tail_lines);
        if (common.json) {
          out.push_back({{"worker", to_string(w.id)}, {"role", w.role}, {"stream", stream == 1 ? "stdout" : "stderr"}, {"text", lines}});
          continue;
        }
        for (std::size_t from = 0; from < lines.size();) {
          const auto end = std::min(lines.find('\n', from), lines.size());
          std::fprintf(stream == 1 ? stdout : stderr, "(%s) %s\n", w.role.c_str(), lines.substr(from, end - from).c_str());
          from = end + 1;
        }
      }
    }
    if (options.follow) {
      // Only what comes from now on: the rest was just printed.
      std::map<WorkerId, bool> wanted;
      for (const auto& w : *workers) wanted[w.id] = true;
      bool caught_up = false;
      (*client)->set_on_notice([&](Method method, runtime::Message message) {
        if (method != Method::kLogLines || !caught_up) return;
        const auto m = actors::from_bytes<actors::LogLines>(message.body);
        if (!m || !wanted.contains(m->worker)) return;
        std::fprintf(m->stream == 1 ? stdout : stderr, "(%s) %.*s", m->label.c_str(), static_cast<int>(message.payload.size()),
                     message.payload.view().data());
        std::fflush(stdout);
      });
      if (const auto r = (*client)->ask(Method::kFollowLogs, to_bytes(actors::JobRef{workers->front().job})); !r)
        return failed(common, r.error());
      caught_up = true;
      looking->context->run_until([&] { return (*client)->closed(); }, std::chrono::hours(24 * 365));
    }
  }
  if (common.json) std::printf("%s\n", json({{"schema", "shoal.logs/1"}, {"logs", out}}).dump().c_str());
  return kOk;
}

}  // namespace shoal::scheduler::cli
