// The commands, each a function from its options to an exit code. main.cc reads the command line and the environment,
// these do not.
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
  std::string host;            // of a head: where it listens; of a node that joins: where others reach it; "": loopback, or found
  std::string dashboard_host;  // "": loopback
  std::uint16_t port = 0;
  double num_cpus = -1, num_gpus = -1, memory = -1;  // -1: what the machine has
  double memory_threshold = -1;                      // -1: the environment's, or the default
  std::vector<std::string> resources;                // NAME=AMOUNT
  std::vector<std::string> labels;                   // NAME=VALUE
  std::string store;                                 // etcd://.. or etcds://..; "": a database in the session's folder
  etcd::Access store_access;
  std::string authority;  // another head's tls folder; "": one of its own
  bool fsync = false;
  std::string spill_folder;  // for objects; "": the node chooses
  bool http = true;
  std::uint16_t http_port = 8265;
  bool http_or_any = true;
  bool block = false;  // stay until a signal, the cluster's end or that of its node; then nothing of it is left here
};
int start(const Common& common, const StartOptions& options);

struct StopOptions {
  bool all = false;
  double grace_s = 5;
  bool force = false;  // kill at once
};
int stop(const Common& common, const StopOptions& options);

struct DutyOptions {
  std::string node;  // the beginning of its id; "" is the only one
  actors::NodeDuty duty = actors::NodeDuty::kCordoned;
  double deadline_s = 60;       // of a drain
  bool wait = true;             // until it is drained
  std::string reason, message;  // of a drain, as Ray names them: for idleness only a node that is idle
};
constexpr const char* kIdleTermination = "DRAIN_NODE_REASON_IDLE_TERMINATION";
int set_duty(const Common& common, const DutyOptions& options);

// Verbose: with a row per node.
int status(const Common& common, bool verbose);
int health_check(const Common& common);

struct ListOptions {
  std::string what;
  std::vector<std::string> filters;  // KEY=VALUE, KEY!=VALUE
  std::optional<std::size_t> limit;  // 0: all. Of what the nodes are asked for 100 unless said
  bool detail = false;               // all that is known of each
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
// Who holds which objects, and how much of each node's memory they take.
int memory(const Common& common, MemoryOptions options);

// What ran where and when, as a Chrome trace. "-": to stdout.
int timeline(const Common& common, const std::string& file);

// What the cluster measures, as Prometheus reads it.
int metrics(const Common& common);
// What Prometheus has to be told to read it.
int scrape_config(const Common& common);

struct MicrobenchmarkOptions {
  std::string filter;  // in the names of figures
  double seconds = 1;  // for each
};
// Becomes Python's; returns only when that cannot be.
int microbenchmark(const Common& common, const MicrobenchmarkOptions& options);

struct LogsOptions {
  std::string id;  // of a job, worker or actor, or an actor's name or class; "" is the latest job
  // What the id is of: "actor", "worker", "job" (also as it was submitted), "task", "cluster" (a file); "": any of them but a task.
  std::string kind;
  pid_t pid = 0;                 // of a process instead of an id
  std::string node_id, node_ip;  // where that runs
  bool follow = false;
  std::int64_t tail_lines = -1;  // below 0: all that is kept
  bool previous = false;         // of an actor's process before the one that it has
  bool only_err = false;
};
int logs(const Common& common, const LogsOptions& options);

// What Python threads of this host's workers run; of those of a worker, actor, job or process, "" of all.
int stack(const Common& common, const std::string& id);

struct SubmitOptions {
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD
  bool command = false;            // it was given after --
  std::uint32_t num_workers = 0;
  double num_cpus = -1, num_gpus = 0;
  std::vector<std::string> resources;
  bool wait = false;
  std::string name;
  double detach_after_s = 3;  // after the first Ctrl-C: for a second one, which stops the job
  std::string cwd;
  std::vector<std::pair<std::string, std::string>> env;
};
int submit(const Common& common, const SubmitOptions& options);

struct JobOptions {
  std::string id;                  // the submitter's or the job's own
  std::vector<std::string> words;  // of the entrypoint
  std::string submission_id, runtime_env_file, runtime_env_json, working_dir, metadata_json;
  double num_cpus = 0, num_gpus = 0, memory = 0;
  std::string resources_json;
  bool wait = true, follow = false;
  std::string cwd, path, python_path;  // of this process
};
int job_submit(const Common& common, const JobOptions& options);
int job_status(const Common& common, const JobOptions& options);
int job_logs(const Common& common, const JobOptions& options);
int job_stop(const Common& common, const JobOptions& options);
int job_delete(const Common& common, const JobOptions& options);

int doctor(const Common& common);

// Pieces that several commands use.
struct Looking {
  std::unique_ptr<Context> context;
  std::unique_ptr<Client> head;
  std::string address;
  std::string endpoint;  // of the head, from here; or of several, comma-separated
  std::string logs;      // folder
  std::string host;      // of a cluster over hosts: this one
  bool over_hosts = false;
};
Result<Looking> look(const Common& common);
// Prints what the job prints, until it ends. None when a signal ended the watching.
Result<std::optional<actors::JobRow>> follow_job(const Common& common, Context& context, Client& head, JobId job);
int failed(const Common& common, const Error& error);
Result<actors::Resources> parse_resources(const StartOptions& options);
// From JSON, {"slot": 1}, to words NAME=AMOUNT; and from NAME=VALUE,NAME=VALUE to words.
Result<std::vector<std::string>> amounts_of_json(const std::string& text);
std::vector<std::string> words_of_list(const std::string& text);
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);
Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts);

// Starts a role of this executable in a session of its own and waits for its first word.
Result<actors::StartedRole> start_role(const std::string& self, const actors::SessionFolder& folder, std::vector<std::string> words);
// With a fresh token, or that one.
Result<actors::SessionFolder> new_session(const std::string& root, std::optional<runtime::Token> token = {});

}  // namespace shoal::scheduler::cli
