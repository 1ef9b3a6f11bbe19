#include "scheduler/cli/verbs/submit.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/process/process.h"
#include "scheduler/cli/amounts.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/session.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

namespace fs = std::filesystem;
using actors::JobRow;
using actors::JobState;
using actors::Launch;
using actors::Method;
using actors::SessionFolder;

namespace {

// The running cluster, or a new one for this job, which ends with this process (`own`).
Result<Found> cluster_for(const Common& common, const actors::Resources& each, std::uint32_t count, bool& own) {
  auto found = find_cluster(common.target, true);
  if (found || !common.target.address.empty() || found.error().reason() != "NoCluster") return found;
  own = true;
  SHOAL_TRY(const SessionFolder folder, new_session(common.target.root));
  std::vector<std::string> words = {"local", "--owner", std::to_string(getpid()), "--python", common.python};
  // A cluster that is made for a job has as many CPUs as the job asks for, since CPUs are logical.
  actors::Resources has = detect_resources();
  has.set_units("CPU", std::max(has.units("CPU"), each.units("CPU") * std::max<std::int64_t>(1, count)));
  for (const auto& word : resource_words(has)) words.push_back(word);
  SHOAL_TRY(const auto said, start_role(common, folder, std::move(words)));
  SHOAL_TRY(auto credentials, folder.credentials());
  return Found{folder, std::move(credentials), said.head_local, said.head_local};
}

Result<Launch> launch_of(const Common& common, const SubmitOptions& o) {
  Launch launch;
  launch.cwd = o.cwd;
  launch.env = job_variables(common.environment);
  if (o.command) {
    launch.kind = Launch::Kind::kProgram;
    launch.argv = o.words;
    return launch;
  }
  const fs::path script = fs::path(o.words[0]).is_absolute() ? fs::path(o.words[0]) : fs::path(o.cwd) / o.words[0];
  std::error_code ignored;
  if (!fs::exists(script, ignored)) {
    return fail(
        not_found("no script " + o.words[0]).with_reason("NoScript").with_hint("to run a program: shoal submit -- " + o.words[0] + " ..."));
  }
  if (!fs::is_regular_file(script, ignored) || access(script.c_str(), R_OK) != 0) {
    return fail(invalid_argument(o.words[0] + " cannot be read").with_reason("CannotRun"));
  }
  launch.env.emplace_back("PYTHONUNBUFFERED", "1");
  launch.program = common.python;
  launch.argv = o.words;
  launch.argv[0] = script;
  if (o.num_workers > 0) {
    launch.kind = Launch::Kind::kPythonScript;
    launch.torch = true;  // a gang that gets torchrun's variables runs PyTorch
    // The warm interpreter has its own PYTHONPATH and another working directory.
    for (const auto& [name, value] : launch.env) {
      std::istringstream folders(name == "PYTHONPATH" ? value : "");
      for (std::string folder; std::getline(folders, folder, ':');) launch.python_path.push_back(fs::path(o.cwd) / folder);
    }
  } else {
    launch.kind = Launch::Kind::kProgram;
    launch.argv.insert(launch.argv.begin(), common.python);
  }
  return launch;
}

// True if the file or pipe that is this process's stdin has bytes left.
bool stdin_has_data() {
  struct stat seen {};
  if (fstat(STDIN_FILENO, &seen) != 0) return false;
  if (S_ISREG(seen.st_mode)) return lseek(STDIN_FILENO, 0, SEEK_CUR) < seen.st_size;
  pollfd readable{STDIN_FILENO, POLLIN, 0};
  int bytes = 0;
  return (S_ISFIFO(seen.st_mode) || S_ISSOCK(seen.st_mode)) && poll(&readable, 1, 0) == 1 && ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 &&
         bytes > 0;
}

// Follows one job to its end.
class Watcher {
 public:
  // The first Ctrl-C ends the watching (kLeave, kLeaveSoon) or stops the job (kStop). With kLeaveSoon a second Ctrl-C within
  // `second_thought` stops the job after all. SIGTERM stops the job, except with kLeave. SIGHUP does, where SIGTERM is ignored from the
  // start: for `shoal run`, which decides what follows a SIGTERM.
  enum class OnInterrupt { kLeave, kLeaveSoon, kStop };
  Watcher(Context& context, Client& head, const Common& common, OnInterrupt on_interrupt, runtime::Duration second_thought = {})
      : context_(context),
        head_(head),
        common_(common),
        on_interrupt_(on_interrupt),
        second_thought_(second_thought),
        signals_(context.loop.io(), SIGINT) {
    signals_.add(runtime::is_ignored(SIGTERM) ? SIGHUP : SIGTERM);
    head_.set_on_notice([this](Method method, runtime::Message message) {
      // While the job runs, its own process prints warnings about its pending calls, and its output is shown here anyway.
      if (method == Method::kWarning && !(row_ && row_->state == JobState::kRunning)) {
        if (const auto w = actors::from_bytes<actors::Warning>(message.body)) print(stderr, "shoal: warning: {}\n", w->text);
      }
      if (method != Method::kJobUpdate) return;
      auto row = actors::from_bytes<JobRow>(message.body);
      if (!row || (row_ && row_->ended_unix_ms != 0)) return;
      placed_ |= row->state == JobState::kRunning;
      row_ = *std::move(row);
    });
  }

  // The cluster's folder on this host: shows whether the cluster was stopped on purpose.
  void set_folder(const SessionFolder& folder) { folder_ = folder; }

  Result<void> follow(JobId job) {
    job_ = job;
    on_signals();
    return follow_again();
  }

  // The job's last row, or the reason why it is unknown.
  Result<JobRow> wait() {
    const auto ended = [this] { return row_ && row_->ended_unix_ms != 0; };
    do {
      if (std::exchange(placed_, false)) (void)follow_nodes();  // nodes may have joined while the job waited
      context_.run_until([&] { return ended() || head_.closed() || given_up_ || placed_; }, std::chrono::hours(24 * 365));
    } while (placed_ || (!ended() && !given_up_ && head_.closed() && head_is_back()));
    for (const auto& [id, node] : nodes_) finish_output(*node);
    if (ended()) return *row_;
    return fail(unavailable("the head is gone; the job cannot be followed any more").with_reason("HeadGone"));
  }
  // The signal by which the job was asked to stop; 0 when there was none.
  int signal() const { return signal_; }
  // The signal that ended the watching while the job goes on; 0 when there was none.
  int left() const { return left_; }
  bool cluster_stopped() const { return folder_ && folder_->ending(); }

 private:
  Result<void> follow_again() {
    SHOAL_OK(follow_nodes());
    SHOAL_TRY(auto row, head_.request_for<JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{job_})));
    if (!row_ || row_->ended_unix_ms == 0) row_ = std::move(row);
    return {};
  }
  // Waits for a dead head, which its node restarts.
  bool head_is_back() {
    const bool any = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& n) { return !n.second->closed(); });
    if (!any || cluster_stopped() || !head_.is_back() || !follow_again()) return false;
    if (signal_ != 0) request_stop();  // the dead head may not have received the request
    return true;
  }
  void request_stop() { (void)head_.request(Method::kStopJob, to_bytes(actors::StopJob{job_, killing_}), std::chrono::seconds(1)); }
  Result<void> follow_nodes() {
    SHOAL_TRY(const auto nodes, head_.list(actors::ListRequest::What::kNodes));
    for (const auto& n : nodes.nodes) {
      if (n.state != actors::NodeState::kAlive || nodes_.contains(n.id)) continue;
      SHOAL_TRY(auto client, Client::connect(context_, n.endpoint));
      client->set_on_notice([this](Method method, runtime::Message message) { on_node(method, message); });
      SHOAL_OK(client->request(Method::kFollowLogs, to_bytes(actors::JobRef{job_})));
      nodes_[n.id] = std::move(client);
    }
    return {};
  }

  // Log lines come over other connections than the job's end, and a slow reader of this command's stdout delays them. So this waits for the
  // last one while lines keep arriving.
  void finish_output(Client& node) {
    for (std::size_t seen = 0, silent = 0; !given_up_ && !node.closed() && silent < kSilentSeconds; ++silent) {
      if (node.request(Method::kSyncLogs, {}, std::chrono::seconds(1))) return;
      if (std::exchange(seen, num_messages_) != num_messages_) silent = 0;
    }
    if (!given_up_ && !cluster_stopped()) print(stderr, "shoal: warning: a node fell silent; the end of the output may be missing here\n");
  }

  void on_signals() {
    signals_.async_wait([this](std::error_code error, int number) {
      if (error) return;
      const bool leaves = on_interrupt_ == OnInterrupt::kLeave;
      if (leaves || (on_interrupt_ == OnInterrupt::kLeaveSoon && number == SIGINT && !std::exchange(interrupted_, true))) {
        limit_ = context_.clock->after(second_thought_, [this, number] {
          left_ = number;
          given_up_ = true;
        });
        if (!leaves) {
          print(stderr, "shoal: job {} goes on, this command ends; Ctrl-C again now stops the job. To see it: shoal job logs -f {}\n",
                to_string(job_), to_string(job_));
        }
        return on_signals();
      }
      const bool again = signal_ != 0;
      if (!again) signal_ = number;
      print(stderr, "shoal: {}\n", again ? "killing the job" : "stopping the job; once more kills it");
      killing_ = again;
      request_stop();
      // This command ends in time even if the job does not.
      limit_ =
          context_.clock->after(again ? std::chrono::milliseconds(800) : std::chrono::milliseconds(4500), [this] { given_up_ = true; });
      on_signals();
    });
  }

  void on_node(Method method, const runtime::Message& message) {
    if (method != Method::kLogLines) return;
    ++num_messages_;
    const auto m = actors::from_bytes<actors::LogLines>(message.body);
    if (!m) return;
    // A single driver's output is printed as it is; lines of other processes carry a label.
    const std::string prefix = m->label == "driver" ? ""
                               : m->rank >= 0       ? fmt::format("[rank{}] ", m->rank)
                                                    : fmt::format("({}) ", m->label);
    print_output(m->stream == 2 || common_.json ? stderr : stdout, prefix, message.payload.view());
  }

  static constexpr std::size_t kSilentSeconds = 3;

  Context& context_;
  Client& head_;
  const Common& common_;
  const OnInterrupt on_interrupt_;
  const runtime::Duration second_thought_;
  asio::signal_set signals_;
  std::map<NodeId, std::unique_ptr<Client>> nodes_;
  std::optional<SessionFolder> folder_;
  JobId job_;
  std::optional<JobRow> row_;
  std::size_t num_messages_ = 0;  // messages with log lines
  runtime::Timer limit_;
  int signal_ = 0, left_ = 0;
  bool interrupted_ = false, given_up_ = false, killing_ = false;
  bool placed_ = false;  // since the last look at the nodes
};

int ended_code(const Common& common, const JobRow& row, int signal, bool cluster_stopped) {
  const int code = signal ? 128 + signal : row.state == JobState::kStopped && row.exit_code == 0 ? 128 + SIGTERM : row.exit_code;
  if (common.json) {
    auto out = to_json(row);
    out["schema"] = "shoal.submit/1";
    out["exit_code"] = code;
    print_json(out);
  } else if (cluster_stopped && code != 0) {
    print(stderr, "shoal: the cluster was stopped, and the job with it\n");
  } else if (row.cause && signal == 0) {
    // The output already showed the last lines: print only the first line of the cause.
    Error e(row.cause->code(), row.cause->message().substr(0, row.cause->message().find('\n')));
    e = std::move(e).with_reason(row.cause->reason()).with_hint(row.cause->hint());
    for (const auto& frame : row.cause->context()) e = std::move(e).in(frame);
    print(stderr, "{}\n", Lines{e.to_string()});
  }
  return code;
}

}  // namespace

Result<std::optional<JobRow>> follow_job(const Common& common, Context& context, Client& head, JobId job) {
  Watcher watcher(context, head, common, Watcher::OnInterrupt::kLeave);
  SHOAL_OK(watcher.follow(job));
  auto row = watcher.wait();
  if (watcher.left() != 0) return std::optional<JobRow>();
  if (!row) return fail(row.error());
  return std::optional<JobRow>(*std::move(row));
}

void StdinWarning::check() {
  if (shown_ || !stdin_has_data()) return;
  shown_ = true;
  print(stderr,
        "shoal: warning: the job does not get what this command has on its stdin; pass the job the name of a file, or an argument\n");
}

int submit(const Common& common, const SubmitOptions& o) {
  const auto failed = [&](const Error& e) {
    print_error(e, common.json);
    if (e.reason() == "NoScript") return static_cast<int>(kSubmitNotFound);
    if (e.reason() == "CannotRun") return static_cast<int>(kSubmitCannotRun);
    return submit_exit_code(e);
  };
  if (o.words.empty()) {
    print_error(invalid_argument("nothing to run").with_hint("shoal submit SCRIPT [ARGS]   or   shoal submit -- CMD [ARGS]"), common.json);
    return kSubmitUsage;
  }
  if (const auto right = check_switches(common.environment); !right) {
    print_error(right.error(), common.json);
    return kSubmitUsage;
  }
  const auto launch = launch_of(common, o);
  if (!launch) return failed(launch.error());
  const double cpus = o.num_cpus >= 0 ? o.num_cpus : o.num_workers > 0 ? 1 : 0;
  const auto resources = parse_amounts(o.resources, {{"CPU", cpus}, {"GPU", o.num_gpus}});
  if (!resources) {
    print_error(resources.error(), common.json);
    return kSubmitUsage;
  }
  std::map<std::string, std::string> metadata;
  for (const auto& entry : o.metadata) {
    const auto equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) {
      print_error(invalid_argument("--metadata " + entry + " is not NAME=VALUE").with_reason("Usage"), common.json);
      return kSubmitUsage;
    }
    metadata[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  bool own = false;
  const auto cluster = cluster_for(common, *resources, o.num_workers, own);
  if (!cluster) return failed(cluster.error());
  Context context(cluster->credentials);
  const auto head = connect_head(context, *cluster);
  if (!head) return failed(head.error());
  Watcher watcher(context, **head, common, own ? Watcher::OnInterrupt::kStop : Watcher::OnInterrupt::kLeaveSoon,
                  std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(o.detach_after_s)));
  if (cluster->folder && !own) watcher.set_folder(*cluster->folder);
  const actors::JobSpec spec{
      o.name.empty() ? fs::path(o.words[0]).filename().string() : o.name,
      *launch,
      o.num_workers,
      *resources,
      o.wait,
      getpid(),
      {{}, fmt::format("{}", fmt::join(o.words, " ")).substr(0, actors::Submission::kMaxText), {}, std::move(metadata)}};
  const auto job = (*head)->request_for<actors::JobRef>(Method::kSubmitJob, to_bytes(spec));
  if (!job) return failed(job.error());
  if (!common.json && isatty(STDERR_FILENO) != 0) {
    print(stderr, "shoal: job {0}; from another terminal: shoal job logs -f {0}, shoal scale {0} --workers N, shoal job stop {0}\n",
          to_string(job->job));
  }
  StdinWarning stdin_warning;
  stdin_warning.check();
  if (const auto following = watcher.follow(job->job); !following) return failed(following.error());
  const auto row = watcher.wait();
  stdin_warning.check();
  if (watcher.left() != 0) return 128 + watcher.left();
  if (watcher.signal() != 0 && !row) return 128 + watcher.signal();
  if (!row && watcher.cluster_stopped() && !common.json) {
    print(stderr, "shoal: the cluster was stopped, and the job with it\n");
    return submit_exit_code(row.error());
  }
  if (!row) return failed(row.error());
  return ended_code(common, *row, watcher.signal(), watcher.cluster_stopped());
}

void add_submit(CommandLine& line) {
  auto& options = line.own<SubmitOptions>();
  auto* verb = line.add_verb("submit", "Run a script (SCRIPT [ARGS]) or a command (-- CMD) as a job; exits with its code");
  line.takes_command(verb, CommandLine::Command::kProgramOrScript);
  line.keeps_programs_code(verb);
  line.set_usage_exit(verb, kSubmitUsage);
  verb->add_option("--num-workers", options.num_workers, "Run N ranks, placed together, with torchrun's environment variables");
  verb->add_option("--num-cpus", options.num_cpus, "CPUs of each process (default: 1 with --num-workers, else 0)")->check(amount());
  verb->add_option("--num-gpus", options.num_gpus, "GPUs of each process")->check(amount());
  verb->add_option("--resource", options.resources, "Another resource of each process: NAME=AMOUNT; may be repeated");
  verb->add_flag("--wait", options.wait, "Wait for nodes that can hold the job, even if none is present");
  verb->add_option("--name", options.name, "Name of the job (default: that of the script)");
  verb->add_option("--metadata", options.metadata, "A text that lists show with the job: NAME=VALUE; may be repeated");
  verb->add_option(
          "--detach-after", options.detach_after_s,
          "Seconds after the first Ctrl-C. The first one ends this command, but not the job; a second one within this time stops the job. "
          "If the cluster was made for the job, the first one stops the job")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 24 * 3600.0));
  line.on_run(verb, [&line, &options](const Common& common) {
    options.words = line.command();
    options.command = !line.command_is_script();
    options.cwd = fs::current_path();
    return submit(common, options);
  });
}

}  // namespace shoal::scheduler::cli
