// status, list, logs: what the cluster looks like.
#include <algorithm>
#include <cstdio>
#include <set>

#include <fmt/chrono.h>
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
  std::string address;
};

Result<Looking> look(const Common& common) {
  SHOAL_TRY(const Found found, find_cluster(common.target, false));
  SHOAL_TRY(const runtime::Token token, found.folder.token());
  Looking out;
  out.context = std::make_unique<Context>(token);
  SHOAL_TRY(out.head, Client::connect(*out.context, found.endpoint));
  out.address = found.address;
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

std::string full_name(const std::string& name, const std::string& name_space) { return name.empty() ? "-" : name_space + "/" + name; }

std::string attribute_text(const std::map<std::string, std::string>& attributes) {
  std::string out;
  for (const auto& [name, value] : attributes) out += (out.empty() ? "" : " ") + name + "=" + value;
  return out;
}

std::string local_time(std::int64_t unix_ms) {
  return unix_ms == 0 ? "-" : fmt::format("{:%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)));
}

// As people look for them: jobs in the order in which they began, of actors and workers those that live first.
void sort_rows(ListReply& r) {
  std::stable_sort(r.jobs.begin(), r.jobs.end(), [](const auto& a, const auto& b) { return a.started_unix_ms < b.started_unix_ms; });
  std::stable_partition(r.actors.begin(), r.actors.end(), [](const auto& a) { return a.state != actors::ActorState::kDead; });
  std::stable_partition(r.groups.begin(), r.groups.end(), [](const auto& g) { return g.state != actors::GroupState::kRemoved; });
  std::stable_partition(r.workers.begin(), r.workers.end(), [](const auto& w) { return w.state != actors::WorkerState::kExited; });
}

void print_rows(const ListReply& r, const std::string& what) {
  std::vector<std::vector<std::string>> rows;
  if (what == "actors") {
    for (const auto& a : r.actors) {
      rows.push_back({to_string(a.id), a.class_name, full_name(a.name, a.name_space), actors::to_string(a.state),
                      a.world_size > 1 ? fmt::format("{}/{}", a.rank, a.world_size) : "-", std::to_string(a.pid), short_id(a.node),
                      std::to_string(a.generation), attribute_text(a.attributes), first_line(a.cause, a.pending_reason)});
    }
    print_table({"ACTOR", "CLASS", "NAME", "STATE", "RANK", "PID", "NODE", "GENERATION", "ATTRIBUTES", "WHY"}, rows);
  } else if (what == "nodes") {
    for (const auto& n : r.nodes) {
      rows.push_back({to_string(n.id), n.host, to_string(n.state), std::to_string(n.pid), n.available.to_string(), n.total.to_string(),
                      attribute_text(n.labels)});
    }
    print_table({"NODE", "HOST", "STATE", "PID", "FREE", "TOTAL", "LABELS"}, rows);
  } else if (what == "workers") {
    for (const auto& w : r.workers) {
      rows.push_back(
          {to_string(w.id), w.role, to_string(w.state), std::to_string(w.pid), short_id(w.node), short_id(w.job), first_line(w.cause, "")});
    }
    print_table({"WORKER", "ROLE", "STATE", "PID", "NODE", "JOB", "WHY"}, rows);
  } else if (what == "groups") {
    for (const auto& g : r.groups) {
      std::string bundles;
      for (std::size_t i = 0; i < g.bundles.size(); ++i) {
        bundles += fmt::format("{}{} on {}", bundles.empty() ? "" : "; ", g.bundles[i].to_string(), short_id(g.nodes[i]));
      }
      rows.push_back({to_string(g.id), full_name(g.name, g.name_space), actors::to_string(g.state), actors::to_string(g.strategy),
                      short_id(g.job), bundles, first_line(g.cause, g.pending_reason)});
    }
    print_table({"GROUP", "NAME", "STATE", "STRATEGY", "JOB", "BUNDLES", "WHY"}, rows);
  } else {
    for (const auto& j : r.jobs) {
      rows.push_back({to_string(j.id), j.name, local_time(j.started_unix_ms), actors::to_string(j.state),
                      j.num_workers ? std::to_string(j.num_workers) : "-", j.ended_unix_ms ? std::to_string(j.exit_code) : "-",
                      first_line(j.cause, j.pending_reason)});
    }
    print_table({"JOB", "NAME", "STARTED", "STATE", "WORKERS", "EXIT", "WHY"}, rows);
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
                              {"address", looking->address},
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
  std::printf("address  %s\nsession  %s (head pid %d)\n", looking->address.c_str(), s->session.c_str(), s->head_pid);
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
                                                          {"jobs", ListRequest::What::kJobs},
                                                          {"groups", ListRequest::What::kGroups}};
  auto r = looking->head->list(kinds.at(what));
  if (!r) return failed(common, r.error());
  sort_rows(*r);
  if (!common.json) {
    print_rows(*r, what);
    return kOk;
  }
  json rows = json::array();
  for (const auto& row : r->actors) rows.push_back(to_json(row));
  for (const auto& row : r->nodes) rows.push_back(to_json(row));
  for (const auto& row : r->workers) rows.push_back(to_json(row));
  for (const auto& row : r->jobs) rows.push_back(to_json(row));
  for (const auto& row : r->groups) rows.push_back(to_json(row));
  std::printf("%s\n", json({{"schema", "shoal.list/1"}, {"what", what}, {"rows", rows}}).dump().c_str());
  return kOk;
}

namespace {

// What an id means: a job with its workers, an actor's worker, or a worker. "" is the latest job. The beginning of an id will do when
// only one begins so.
struct Wanted {
  JobId job;
  bool whole_job = false;  // also those that are still to come
  std::vector<actors::WorkerRow> workers;

  bool has(WorkerId id) const {
    return whole_job || std::any_of(workers.begin(), workers.end(), [&](const auto& w) { return w.id == id; });
  }
};

Result<Wanted> wanted_by(Client& head, const std::string& id) {
  SHOAL_TRY(const auto workers, head.list(ListRequest::What::kWorkers));
  SHOAL_TRY(const auto jobs, head.list(ListRequest::What::kJobs));
  SHOAL_TRY(const auto actors, head.list(ListRequest::What::kActors));
  std::set<JobId> found_jobs;
  std::set<WorkerId> found_workers;
  std::set<std::string> names;
  const auto matches = [&](const auto& other) {
    const bool yes = !id.empty() && to_string(other).starts_with(id);
    if (yes) names.insert(to_string(other));
    return yes;
  };
  for (const auto& j : jobs.jobs) {
    if (matches(j.id)) found_jobs.insert(j.id);
  }
  for (const auto& a : actors.actors) {
    if (matches(a.id)) found_workers.insert(a.worker);
  }
  for (const auto& w : workers.workers) {
    if (matches(w.id)) found_workers.insert(w.id);
  }
  if (names.size() > 1) {
    std::string list;
    for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
    return fail(invalid_argument("more than one id begins with " + id + ": " + list));
  }
  if (id.empty()) {
    std::int64_t latest = -1;
    JobId job;
    for (const auto& j : jobs.jobs) {
      if (j.started_unix_ms > latest) latest = j.started_unix_ms, job = j.id;
    }
    if (!job) return fail(not_found("no job has run yet"));
    found_jobs.insert(job);
  }
  Wanted out;
  out.whole_job = !found_jobs.empty();
  if (out.whole_job) out.job = *found_jobs.begin();
  for (const auto& w : workers.workers) {
    if (out.whole_job ? w.job == out.job : found_workers.contains(w.id)) out.workers.push_back(w);
  }
  if (!out.whole_job && out.workers.empty()) return fail(not_found("no job, worker or actor " + id).with_hint("see shoal list jobs"));
  if (!out.whole_job) out.job = out.workers.front().job;
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

void print_lines(const std::string& who, std::uint16_t stream, std::string_view lines) {
  std::FILE* to = stream == 1 ? stdout : stderr;
  for (std::size_t from = 0; from < lines.size();) {
    const auto end = std::min(lines.find('\n', from), lines.size());
    std::fprintf(to, "(%s) %.*s\n", who.c_str(), static_cast<int>(end - from), lines.data() + from);
    from = end + 1;
  }
  std::fflush(to);
}

using Nodes = std::vector<std::unique_ptr<Client>>;

Result<void> print_kept(const Common& common, const Wanted& wanted, const Nodes& nodes, std::uint64_t tail_lines) {
  json out = json::array();
  for (const auto& node : nodes) {
    for (const auto& w : wanted.workers) {
      for (const std::uint16_t stream : {1, 2}) {
        const auto text = node->ask(Method::kReadLog, to_bytes(actors::ReadLog{w.id, stream, 16u << 20}));
        if (!text) {  // it printed nothing, or ran elsewhere
          if (text.error().code() == Code::kNotFound) continue;
          return fail(text.error());
        }
        const std::string lines = last_lines(std::string(text->payload.view()), tail_lines);
        if (common.json) {
          out.push_back({{"worker", to_string(w.id)}, {"role", w.role}, {"stream", stream == 1 ? "stdout" : "stderr"}, {"text", lines}});
        } else {
          print_lines(w.role, stream, lines);
        }
      }
    }
  }
  if (common.json) std::printf("%s\n", json({{"schema", "shoal.logs/1"}, {"logs", out}}).dump().c_str());
  return {};
}

// What was printed so far and what comes, until the job, or the worker, has ended.
Result<void> follow(Looking& looking, const Wanted& wanted, const Nodes& nodes, std::uint64_t tail_lines) {
  std::map<std::pair<std::string, std::uint16_t>, std::string> backlog;  // by who and stream
  bool caught_up = false, job_ended = false;
  std::set<WorkerId> left;
  for (const auto& w : wanted.workers) {
    if (w.state != actors::WorkerState::kExited) left.insert(w.id);
  }
  for (const auto& node : nodes) {
    node->set_on_notice([&](Method method, runtime::Message message) {
      if (method == Method::kWorkerExited) {
        if (const auto m = actors::from_bytes<actors::WorkerUpdate>(message.body)) left.erase(m->worker);
      }
      if (method != Method::kLogLines) return;
      const auto m = actors::from_bytes<actors::LogLines>(message.body);
      if (!m || !wanted.has(m->worker)) return;
      if (caught_up) return print_lines(m->label, m->stream, message.payload.view());
      backlog[{m->label, m->stream}] += message.payload.view();
    });
    SHOAL_OK(node->ask(Method::kFollowLogs, to_bytes(actors::JobRef{wanted.job})));
  }
  caught_up = true;
  for (const auto& [who, text] : backlog) print_lines(who.first, who.second, last_lines(text, tail_lines));
  looking.head->set_on_notice([&](Method method, runtime::Message message) {
    if (method != Method::kJobUpdate) return;
    if (const auto row = actors::from_bytes<actors::JobRow>(message.body)) job_ended |= row->id == wanted.job && row->ended_unix_ms != 0;
  });
  SHOAL_TRY(const auto row, looking.head->ask_for<actors::JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{wanted.job})));
  job_ended |= row.ended_unix_ms != 0;
  const auto over = [&] {
    const bool lost = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->closed(); });
    return job_ended || lost || (!wanted.whole_job && left.empty());
  };
  looking.context->run_until(over, std::chrono::hours(24 * 365));
  for (const auto& node : nodes) (void)node->ask(Method::kSyncLogs, {}, std::chrono::seconds(1));  // the last lines, if any
  return {};
}

}  // namespace

int logs(const Common& common, const LogsOptions& options) {
  auto looking = look(common);
  if (!looking) return failed(common, looking.error());
  const auto wanted = wanted_by(*looking->head, options.id);
  if (!wanted) return failed(common, wanted.error());
  const auto rows = looking->head->list(ListRequest::What::kNodes);
  if (!rows) return failed(common, rows.error());
  Nodes nodes;
  for (const auto& node : rows->nodes) {
    if (node.state != actors::NodeState::kAlive) continue;
    auto client = Client::connect(*looking->context, node.endpoint);
    if (!client) return failed(common, client.error());
    nodes.push_back(*std::move(client));
  }
  const auto done =
      options.follow ? follow(*looking, *wanted, nodes, options.tail_lines) : print_kept(common, *wanted, nodes, options.tail_lines);
  return done ? kOk : failed(common, done.error());
}

}  // namespace shoal::scheduler::cli
