#include "scheduler/cli/verbs/logs.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/task_log.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/inspect_nodes.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/runs/run_choice.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/node/logs/log_book.h"
#include "scheduler/node/logs/log_files.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::cli {

using actors::ListRequest;
using actors::Method;
using nlohmann::json;

namespace {

// The processes that an id names: a job with its workers, an actor's worker, or a worker. "" is the latest job. A unique prefix of an id
// suffices. Actors also match by name or class; dead actors match only when no living one does.
struct Wanted {
  JobId job;
  bool whole_job = false;  // includes workers that start later
  std::vector<actors::WorkerRow> workers;
  TaskRef task;      // if set, only the worker's output during this call is printed
  std::string name;  // name of the function or method

  bool has(WorkerId id) const {
    return whole_job || std::any_of(workers.begin(), workers.end(), [&](const auto& w) { return w.id == id; });
  }
};

// The latest process with this pid. Pids are reused, and each host has its own.
Result<WorkerId> worker_with(const std::vector<actors::WorkerRow>& workers, const std::vector<actors::NodeRow>& nodes,
                             const LogsOptions& o) {
  const auto on_node = [&](NodeId id) {
    if (!to_string(id).starts_with(o.node_id)) return false;
    return o.node_ip.empty() || std::any_of(nodes.begin(), nodes.end(), [&](const auto& n) { return n.id == id && n.host == o.node_ip; });
  };
  std::optional<WorkerId> found;
  for (const auto& w : workers) {
    if (w.pid == o.pid && on_node(w.node) && (!found || w.state != actors::WorkerState::kExited)) found = w.id;
  }
  if (!found) return fail(not_found(fmt::format("no process {} is known", o.pid)).with_hint("see shoal list workers"));
  return *found;
}

Result<Wanted> wanted_by(Client& head, const LogsOptions& o) {
  const auto& [id, previous] = std::tie(o.id, o.previous);
  const auto wants = [&](const char* kind) { return o.kind.empty() || o.kind == kind; };
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
    if (wants("job") && is_job(j, id))
      names.insert(id), found_jobs.insert(j.id);
    else if (wants("job") && matches(j.id))
      found_jobs.insert(j.id);
  }
  bool never_before = false;
  const auto called_so = [&](const actors::ActorRow& a) {
    return wants("actor") && !id.empty() && (a.name == id || (a.class_name == id && !actors::is_function_worker(a)));
  };
  const auto& all = actors.actors;
  const bool named = found_jobs.empty() && std::any_of(all.begin(), all.end(), called_so);
  const bool lives =
      std::any_of(all.begin(), all.end(), [&](const auto& a) { return called_so(a) && a.state != actors::ActorState::kDead; });
  if (named) names = {id};
  for (const auto& a : all) {
    const bool this_one = named && called_so(a) && (!lives || a.state != actors::ActorState::kDead);
    if (!this_one && (named || !wants("actor") || !matches(a.id))) continue;
    never_before |= previous && !a.previous;
    found_workers.insert(previous ? a.previous : a.worker);
  }
  for (const auto& w : workers.workers) {
    if (!named && wants("worker") && matches(w.id)) found_workers.insert(w.id);
  }
  if (o.pid != 0) {
    SHOAL_TRY(const auto nodes, head.list(ListRequest::What::kNodes));
    SHOAL_TRY(const auto worker, worker_with(workers.workers, nodes.nodes, o));
    found_workers.insert(worker);
  }
  if (never_before) return fail(not_found("actor " + id + " has had no process before its present one"));
  if (previous && found_workers.empty()) return fail(invalid_argument("--previous applies only to an actor that was started again"));
  if (names.size() > 1) {
    std::string list;
    for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
    return fail(invalid_argument("more than one id begins with " + id + ": " + list));
  }
  if (id.empty() && o.pid == 0) {
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
  if (!out.whole_job && out.workers.empty()) {
    const std::string what = o.kind.empty() ? "job, worker or actor" : o.kind;
    return fail(not_found("no " + what + (o.kind.empty() || o.kind == "actor" ? " has the id or name " : " ") + id)
                    .with_hint("see shoal list " + (o.kind.empty() ? "actor" : o.kind) + "s"));
  }
  if (!out.whole_job) out.job = out.workers.front().job;
  return out;
}

// The process that ran the last attempt of a call.
Result<Wanted> ran_by(ClusterConnection& cluster, const std::string& id) {
  const auto task = parse_task(id);
  if (!task) return fail(invalid_argument("a task has an id of 32 hexadecimal digits, not " + id).with_hint("see shoal list tasks"));
  SHOAL_TRY(const InspectionReply reported, inspect_nodes(cluster, actors::Inspect::What::kTasks));
  for (const auto& line : silent_lines(reported)) print(stderr, "shoal: {}\n", line);
  json last;
  for (const auto& row : task_rows(reported)) {
    if (row["id"] == id && (last.is_null() || row["attempt"] > last["attempt"])) last = row;
  }
  if (last.is_null()) return fail(not_found("no task " + id).with_hint("see shoal list tasks"));
  if (last["worker"].is_null()) return fail(not_found("task " + id + " has not run: it is " + last["state"].get<std::string>()));
  Wanted out;
  out.task = *task;
  out.name = last["name"];
  SHOAL_TRY(const auto workers, cluster.head->list(ListRequest::What::kWorkers));
  for (const auto& w : workers.workers) {
    if (to_string(w.id) == last["worker"]) out.workers.push_back(w);
  }
  if (out.workers.empty()) return fail(not_found("the process that ran task " + id + " is not known any more"));
  out.job = out.workers.front().job;
  return out;
}

std::string last_lines(const std::string& text, std::int64_t lines) {
  if (lines < 0) return text;
  if (lines == 0) return "";
  std::size_t at = text.size();
  for (std::int64_t n = 0; at > 0; --at) {
    if (text[at - 1] == '\n' && at != text.size() && ++n == lines) break;
  }
  return text.substr(at);
}

void print_lines(const std::string& who, std::uint16_t stream, std::string_view lines) {
  print_output(stream == 1 ? stdout : stderr, fmt::format("({}) ", who), lines);
}

using Nodes = std::vector<std::unique_ptr<Client>>;

constexpr std::size_t kMaxBytes = 16u << 20;  // limit per stream of a process

// Reads from the nodes. Logs of nodes that are gone come from the session's folder, which all nodes of a host share.
Result<std::string> kept_text(const ClusterConnection& cluster, const Nodes& nodes, WorkerId worker, std::uint16_t stream,
                              const TaskRef& task) {
  for (const auto& node : nodes) {
    const actors::ReadLog read{worker, stream, kMaxBytes};
    const auto text = task.caller
                          ? node->request(actors::Method::kReadTaskLog, to_bytes(actors::ReadTaskLog{read, task.caller, task.number}))
                          : node->request(Method::kReadLog, to_bytes(read));
    if (text) return std::string(text->payload.view());
    if (text.error().code() != Code::kNotFound) return fail(text.error());
  }
  if (task.caller) {
    return fail(not_found("no living node has a record of the calls that printed in worker " + to_string(worker)).with_reason("Forgotten"));
  }
  LogBook::Options folder;
  folder.folder = cluster.logs;
  return LogBook(folder).read(worker, static_cast<Launcher::Stream>(stream), kMaxBytes);
}

Result<void> print_kept(const Common& common, const ClusterConnection& cluster, const Wanted& wanted, const Nodes& nodes,
                        const LogsOptions& options) {
  json out = json::array();
  for (const auto& w : wanted.workers) {
    for (const std::uint16_t stream : {1, 2}) {
      if (stream == 1 && options.only_err) continue;
      const auto text = kept_text(cluster, nodes, w.id, stream, wanted.task);
      if (!text) {
        const std::string reason = text.error().reason();
        if (text.error().code() == Code::kNotFound && reason != "Forgotten") continue;  // the process has printed nothing
        if (reason == "NoMarks" || reason == "Forgotten") {
          return fail(Error(text.error()).with_hint(fmt::format("`shoal logs worker --pid {}` shows the output of all its calls", w.pid)));
        }
        return fail(text.error());
      }
      const std::string lines = last_lines(*text, options.tail_lines);
      if (common.json) {
        out.push_back({{"worker", to_string(w.id)}, {"role", w.role}, {"stream", stream == 1 ? "stdout" : "stderr"}, {"text", lines}});
      } else {
        print_lines(wanted.name.empty() ? w.role : wanted.name, stream, lines);
      }
    }
  }
  if (common.json) {
    const json all = {{"schema", "shoal.logs/1"}, {"logs", out}};
    print_json(all);
  }
  return {};
}

// Prints the output so far and then new lines until the job, or every wanted worker, has ended.
Result<void> follow_wanted(ClusterConnection& cluster, const Wanted& wanted, const Nodes& nodes, const LogsOptions& options) {
  std::map<std::pair<std::string, std::uint16_t>, std::string> backlog;  // by worker and stream
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
      if (!m || !wanted.has(m->worker) || (options.only_err && m->stream != 2)) return;
      if (caught_up) return print_lines(m->label, m->stream, message.payload.view());
      backlog[{m->label, m->stream}] += message.payload.view();
    });
    SHOAL_OK(node->request(Method::kFollowLogs, to_bytes(actors::JobRef{wanted.job})));
  }
  caught_up = true;
  for (const auto& [who, text] : backlog) print_lines(who.first, who.second, last_lines(text, options.tail_lines));
  cluster.head->set_on_notice([&](Method method, runtime::Message message) {
    if (method != Method::kJobUpdate) return;
    if (const auto row = actors::from_bytes<actors::JobRow>(message.body)) job_ended |= row->id == wanted.job && row->ended_unix_ms != 0;
  });
  SHOAL_TRY(const auto row, cluster.head->request_for<actors::JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{wanted.job})));
  job_ended |= row.ended_unix_ms != 0;
  const auto over = [&] {
    const bool lost = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->closed(); });
    return job_ended || lost || (!wanted.whole_job && left.empty());
  };
  cluster.context->run_until(over, std::chrono::hours(24 * 365));
  // The node reads what its workers have written last, and sends it.
  for (const auto& node : nodes) (void)node->request(Method::kSyncLogs, {}, std::chrono::seconds(1));
  return {};
}

// Returns true if the argument is a pattern of file names, and not an id or a prefix of one.
bool is_pattern(const LogsOptions& o) {
  return o.kind == "cluster" || (o.kind.empty() && o.id.find_first_not_of("0123456789abcdef") != std::string::npos &&
                                 o.id.find_first_of(".*?[") != std::string::npos);
}

// The folder of log files: that of the named node's host, or of this host.
struct Files {
  std::string folder;            // the folder, if it is on this host; or
  std::unique_ptr<Client> node;  // a node on the host that has it
  std::string host;
};

Result<Files> files_of(const ClusterConnection& cluster, const LogsOptions& o) {
  Files out;
  out.folder = cluster.logs;
  if (o.node_id.empty() && o.node_ip.empty()) {
    if (!cluster.logs.empty()) return out;
    return fail(invalid_argument("this host has no node of the cluster: name a node with --node-id or --node-ip")
                    .with_hint("see shoal list nodes"));
  }
  SHOAL_TRY(auto rows, cluster.head->list(ListRequest::What::kNodes));
  const auto named = [&](const actors::NodeRow& n) {
    return to_string(n.id).starts_with(o.node_id) && (o.node_ip.empty() || n.host == o.node_ip);
  };
  const auto first = std::find_if(rows.nodes.begin(), rows.nodes.end(), named);
  if (first == rows.nodes.end()) {
    return fail(not_found("there is no node " + (o.node_id.empty() ? o.node_ip : o.node_id)).with_hint("see shoal list nodes"));
  }
  const bool several = std::any_of(rows.nodes.begin(), rows.nodes.end(), [&](const auto& n) { return named(n) && n.host != first->host; });
  if (several) return fail(invalid_argument("the id of more than one node begins with " + o.node_id));
  out.host = first->host;
  std::stable_partition(rows.nodes.begin(), rows.nodes.end(), named);
  // Nodes of one session on a host share a folder, so any living one can answer.
  std::optional<Error> why;
  for (const auto& n : rows.nodes) {
    if (n.host != out.host || n.state != actors::NodeState::kAlive) continue;
    auto client = Client::connect(*cluster.context, n.endpoint);
    if (client) {
      out.node = *std::move(client);
      return out;
    }
    why = client.error();
  }
  if (!cluster.logs.empty() && (!cluster.over_hosts || cluster.host == out.host)) return out;
  return fail(
      unavailable("no node of " + out.host + " answers any more, and only that host has the files" + (why ? ": " + why->message() : ""))
          .with_reason("NodeGone")
          .with_hint("run `shoal logs cluster` on that host, or read logs/ in its session's folder"));
}

// Prints the names of matching files, or the text of the only match, as Ray does.
int log_files(const Common& common, const ClusterConnection& cluster, const LogsOptions& o) {
  if (o.follow) {
    const std::string there = cluster.logs.empty() ? "the session's logs" : cluster.logs;
    return failed(common, unimplemented("following a file").with_hint("tail -F " + there + "/" + o.id + ", on its host"));
  }
  const auto files = files_of(cluster, o);
  if (!files) return failed(common, files.error());
  const auto read = [&](const std::string& name) -> Result<std::string> {
    const std::uint64_t bytes = o.tail_lines == 0 ? 0 : kMaxBytes;
    if (!files->node) return read_log_file(files->folder, name, bytes);
    SHOAL_TRY(const auto answer, files->node->request(actors::Method::kReadLogFile, to_bytes(actors::ReadLogFile{name, bytes})));
    return std::string(answer.payload.view());
  };
  std::vector<std::string> all;
  if (files->node) {
    const auto listed = read("");
    if (!listed) return failed(common, listed.error());
    std::istringstream lines(*listed);
    for (std::string name; std::getline(lines, name);) all.push_back(name);
  } else {
    all = scheduler::log_files(files->folder);
  }
  std::vector<std::string> names;
  for (const auto& name : all) {
    if (fnmatch(o.id.empty() ? "*" : o.id.c_str(), name.c_str(), 0) == 0) names.push_back(name);
  }
  json out = {{"schema", "shoal.logs/1"}, {"folder", files->node ? "" : files->folder}, {"host", files->host}, {"files", names}};
  if (names.size() != 1) {
    if (common.json) {
      print_json(out);
    } else {
      for (const auto& name : names) print(stdout, "{}\n", name);
    }
    return kOk;
  }
  const auto whole = read(names.front());
  if (!whole) return failed(common, whole.error());
  const std::string text = last_lines(*whole, o.tail_lines);
  if (common.json) {
    out["text"] = text;
    print_json(out);
  } else {
    print_output(stdout, text);
  }
  return kOk;
}

// The error for an id that no cluster knows, but which is a run's name. No cluster keeps the output of `shoal run`.
Error unless_a_run(const Common& common, const LogsOptions& options, Error unknown) {
  const auto listed = runs::list_runs(run_roots(common.target.root));
  const bool is_run = options.kind.empty() && !options.id.empty() &&
                      std::any_of(listed.begin(), listed.end(), [&](const auto& run) { return run.name == options.id; });
  if (!is_run) return unknown;
  return not_found(options.id + " is a run: its output went to the terminal or the file of `shoal run`")
      .with_hint(fmt::format("`shoal show {0}` prints what became of it; a file of `shoal launch ssh` is {0}-0.log on the first host, one "
                             "of Slurm {0}-JOB.out",
                             options.id));
}

}  // namespace

int logs(const Common& common, const LogsOptions& options) {
  const bool of_task = options.kind == "task";
  if (of_task && options.follow) {
    return failed(common,
                  unimplemented("following one task").with_hint("`shoal logs worker --pid PID -f` follows the process that runs it"));
  }
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, unless_a_run(common, options, cluster.error()));
  if (is_pattern(options)) return log_files(common, *cluster, options);
  const auto wanted = of_task ? ran_by(*cluster, options.id) : wanted_by(*cluster->head, options);
  if (!wanted)
    return failed(common, wanted.error().code() == Code::kNotFound ? unless_a_run(common, options, wanted.error()) : wanted.error());
  const auto rows = cluster->head->list(ListRequest::What::kNodes);
  if (!rows) return failed(common, rows.error());
  Nodes nodes;
  for (const auto& node : rows->nodes) {
    if (node.state != actors::NodeState::kAlive) continue;
    auto client = Client::connect(*cluster->context, node.endpoint);
    if (!client) return failed(common, client.error());
    nodes.push_back(*std::move(client));
  }
  const auto followed =
      options.follow ? follow_wanted(*cluster, *wanted, nodes, options) : print_kept(common, *cluster, *wanted, nodes, options);
  return followed ? kOk : failed(common, followed.error());
}

namespace {

// `shoal logs actor`, `worker` and so on, with Ray's options.
void add_kind(CLI::App& logs_verb, LogsOptions& options, const std::string& kind, const char* about) {
  auto* verb = logs_verb.add_subcommand(kind, about);
  verb->fallthrough();
  if (kind == "cluster") {
    verb->add_option("pattern", options.id, "Pattern of file names (default: *)")->check(not_empty());
  } else {
    verb->add_option("--id", options.id, "Its id, or the unique beginning of the id")->check(not_empty());
    if (kind != "job" && kind != "task") verb->add_option("--pid", options.pid, "Number of its process (pid)");
  }
  verb->callback([&options, kind] { options.kind = kind; });
}

// Refuses options that exclude or need each other.
void check_logs_options(const Common& common, const LogsOptions& options) {
  if (options.follow && options.previous) throw CLI::ValidationError("--previous and --follow exclude each other");
  if (options.follow && common.json) throw CLI::ValidationError("--json and --follow exclude each other");
  if (!options.kind.empty() && options.kind != "cluster" && options.id.empty() && options.pid == 0) {
    throw CLI::ValidationError("name one with --id" + std::string(options.kind == "job" || options.kind == "task" ? "" : " or --pid"));
  }
}

}  // namespace

void add_logs(CommandLine& line) {
  auto& options = line.own<LogsOptions>();
  auto* verb = line.add_verb("logs", "Show the output of a job, worker or actor, also after its end");
  verb->add_option("id", options.id,
                   "An id or its unique beginning, an actor's name or class, or a pattern of log files (default: the latest job)")
      ->check(not_empty());
  verb->add_flag("-f,--follow", options.follow, "Also show later output, as it is printed");
  verb->add_option("-n,--tail", options.tail_lines, "Show only the last N lines of each stream (-1: all stored lines)");
  verb->add_flag("--err", options.only_err, "Show only stderr");
  verb->add_flag("--previous", options.previous, "Show the former process of an actor that was started again");
  verb->add_option("--node-id", options.node_id, "Id of the node with the process (--pid) or the files")->check(not_empty());
  verb->add_option("--node-ip", options.node_ip, "IP address of that node")->check(not_empty());
  add_kind(*verb, options, "actor", "Show the output of an actor (--id or --pid)");
  add_kind(*verb, options, "worker", "Show the output of a process (--pid or --id)");
  add_kind(*verb, options, "job", "Show the output of a job (--id, which may be its submission id)");
  add_kind(*verb, options, "task", "Show the output of one call of a remote function or method (--id)");
  add_kind(*verb, options, "cluster", "List the session's log files, or show the one that matches the pattern");
  line.on_run(verb, [&options](const Common& common) {
    check_logs_options(common, options);
    return logs(common, options);
  });
}

}  // namespace shoal::scheduler::cli
