// The commands: each is a function from options to an exit code. Only main.cc reads the command line and the environment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/session/role.h"
#include "scheduler/cli/client.h"
#include "scheduler/etcd/access.h"

namespace shoal::scheduler::cli {

struct Common {
  Target target;
  bool json = false;
  std::string self;    // this executable's path
  std::string python;  // the interpreter beside it
};

struct StartOptions {
  bool head = false;
  std::string host;            // listening address of a head, public address of a joining node; "": loopback, or detected
  std::string dashboard_host;  // "": loopback
  std::uint16_t port = 0;
  double num_cpus = -1, num_gpus = -1, memory = -1;  // -1: all of the machine's
  double memory_threshold = -1;                      // -1: from the environment, or the default
  std::vector<std::string> resources;                // NAME=AMOUNT
  std::vector<std::string> labels;                   // NAME=VALUE
  std::string store;                                 // etcd://.. or etcds://..; "": a database in the session's folder
  etcd::Access store_access;
  std::string authority;  // tls folder of another head; "": a new authority
  bool fsync = false;
  std::string spill_folder;  // folder for spilled objects; "": the node's choice
  bool http = true;
  std::uint16_t http_port = 8265;
  bool http_or_any = true;
  bool block = false;  // stay until a signal, the cluster's end or the node's end, then end the started processes
};
int start(const Common& common, const StartOptions& options);

struct StopOptions {
  bool all = false;
  double grace_s = 5;
  bool force = false;  // kill at once
};
int stop(const Common& common, const StopOptions& options);

struct SchedulingOptions {
  std::string node;  // prefix of the node's id; "": the only node
  actors::NodeScheduling scheduling = actors::NodeScheduling::kCordoned;
  double deadline_s = 60;       // for a drain
  bool wait = true;             // until the node is drained
  std::string reason, message;  // Ray's names; an idle termination drains only an idle node
};
constexpr const char* kIdleTermination = "DRAIN_NODE_REASON_IDLE_TERMINATION";
int set_scheduling(const Common& common, const SchedulingOptions& options);

// `verbose` adds a row per node.
int status(const Common& common, bool verbose);
int health_check(const Common& common);

struct ListOptions {
  std::string what;
  std::vector<std::string> filters;  // KEY=VALUE, KEY!=VALUE
  std::optional<std::size_t> limit;  // 0: all; unset: 100 for rows that nodes report, else all
  bool detail = false;               // all fields
  std::string format;                // table, json, yaml
};
int list(const Common& common, const ListOptions& options);
struct GetOptions {
  std::string what, id, format;
};
int get(const Common& common, const GetOptions& options);
int describe(const Common& common, const GetOptions& options);
int summary(const Common& common, const std::string& what);

struct MemoryOptions {
  std::string group_by = "NODE_ADDRESS", sort_by = "OBJECT_SIZE";
  std::size_t limit = 100;  // rows of each group; 0: all
  bool stats_only = false;
};
// Which processes hold which objects, and the memory that objects take on each node.
int memory(const Common& common, MemoryOptions options);

// Writes the task rows as a Chrome trace. "-": to stdout.
int timeline(const Common& common, const std::string& file);

// Prints the cluster's metrics in Prometheus' text format.
int metrics(const Common& common);
// Prints the scrape configuration for Prometheus.
int scrape_config(const Common& common);

struct MicrobenchmarkOptions {
  std::string filter;  // substring of the figures' names
  double seconds = 1;  // per figure
};
// Replaces this process by Python's benchmark; returns only on failure.
int microbenchmark(const Common& common, const MicrobenchmarkOptions& options);

struct LogsOptions {
  std::string id;  // id of a job, worker or actor, or an actor's name or class; "": the latest job
  // The kind of `id`: "actor", "worker", "job" (submission ids too), "task", "cluster" (a log file); "": any kind but task.
  std::string kind;
  pid_t pid = 0;                 // process id, instead of `id`
  std::string node_id, node_ip;  // node of `pid`, or of the log files
  bool follow = false;
  std::int64_t tail_lines = -1;  // below 0: all kept lines
  bool previous = false;         // the actor's process before the current one
  bool only_err = false;
};
int logs(const Common& common, const LogsOptions& options);

// Prints the Python stacks of this host's workers: those of the worker, actor, job or process `id`, or all for "".
int stack(const Common& common, const std::string& id);

struct SubmitOptions {
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD
  bool command = false;            // given after --
  std::uint32_t num_workers = 0;
  double num_cpus = -1, num_gpus = 0;
  std::vector<std::string> resources;
  bool wait = false;
  std::string name;
  double detach_after_s = 3;  // after the first Ctrl-C: time for a second one, which stops the job
  std::string cwd;
  std::vector<std::pair<std::string, std::string>> env;
};
int submit(const Common& common, const SubmitOptions& options);

struct JobOptions {
  std::string id;                  // submission id or job id
  std::vector<std::string> words;  // entrypoint
  std::string submission_id, runtime_env_file, runtime_env_json, working_dir, metadata_json;
  double num_cpus = 0, num_gpus = 0, memory = 0;
  std::string resources_json;
  bool wait = true, follow = false;
  std::string cwd, path, python_path;  // this process's working directory, $PATH and $PYTHONPATH
};
int job_submit(const Common& common, const JobOptions& options);
int job_status(const Common& common, const JobOptions& options);
int job_logs(const Common& common, const JobOptions& options);
int job_stop(const Common& common, const JobOptions& options);
int job_delete(const Common& common, const JobOptions& options);

int doctor(const Common& common);

// Shared by several commands.
struct ClusterConnection {
  std::unique_ptr<Context> context;
  std::unique_ptr<Client> head;
  std::string address;
  std::string endpoint;  // one or several comma-separated head endpoints, reachable from this host
  std::string logs;      // folder
  std::string host;      // this host, in a cluster over several hosts
  bool over_hosts = false;
};
Result<ClusterConnection> connect_cluster(const Common& common);
// Prints the job's output until the job ends. Empty when a signal ended the watching.
Result<std::optional<actors::JobRow>> follow_job(const Common& common, Context& context, Client& head, JobId job);
int failed(const Common& common, const Error& error);
Result<actors::Resources> parse_resources(const StartOptions& options);
// amounts_of_json: {"slot": 1} to words NAME=AMOUNT. words_of_list: splits NAME=VALUE,NAME=VALUE.
Result<std::vector<std::string>> amounts_of_json(const std::string& text);
std::vector<std::string> words_of_list(const std::string& text);
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);
Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts);

// Starts a role of this executable in its own Unix session and waits for its report.
Result<actors::StartedRole> start_role(const std::string& self, const actors::SessionFolder& folder, std::vector<std::string> words);
// Creates a session with `token`, or with a new random token.
Result<actors::SessionFolder> new_session(const std::string& root, std::optional<runtime::Token> token = {});

}  // namespace shoal::scheduler::cli
