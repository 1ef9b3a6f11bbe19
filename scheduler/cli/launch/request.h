// The request of `shoal launch` to a scheduler. Pure: options in, a checked request or a refusal out. Each scheduler has a function that
// turns the request into a text such as a person would write: batch_script.h, job_set.h, ssh_script.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

enum class LaunchTarget { kSlurm, kJobSet, kKueue, kSsh };

struct Volume {
  std::string claim;  // the name of a PersistentVolumeClaim
  std::string path;   // where pods see it
};

// A variable of the run's processes.
struct LaunchVariable {
  std::string name;
  std::string value;
  bool inherited = false;  // the value is that of the caller's variable of this name: --env NAME
};

struct LaunchRequest {
  std::string name;                                 // name of the run; "": named after the script
  std::vector<std::string> words;                   // SCRIPT [ARGS], or CMD
  bool is_script = true;                            // words are those of a script, not of another command
  std::optional<std::uint32_t> num_hosts = {};      // the fixed number of hosts
  std::vector<std::string> hosts = {};              // their names
  std::optional<std::uint32_t> min = {}, max = {};  // hosts of an elastic run
  std::optional<std::uint32_t> num_ranks = {};      // per host; not set: as many as it has GPUs, or 1
  bool trainer = false;                             // the script makes a Trainer, and runs once
  std::uint32_t gpus = 0, cpus = 0;                 // per host; 0: not asked for
  std::string memory = {};                          // per host, such as 64Gi; "": not asked for
  std::chrono::seconds time{0};                     // the limit of the run; 0: none
  std::uint32_t grace_s = 30;                       // from the signal to the end of a host's ranks
  std::string shoal = "shoal";                      // the command on the hosts
  std::vector<LaunchVariable> variables = {};       // the processes of the run have them on all hosts
  std::string folder = {};                          // where the command runs on the hosts (ssh)
  std::optional<std::uint16_t> port = {};           // where the head listens (ssh)
  std::string partition = {}, account = {};         // names of Slurm's partition and account
  std::string image = {}, space = {}, queue = {};   // pods: image, namespace, queue of Kueue
  std::string secret = {};                          // pods: name of the Secret by which they meet; "": NAME-shoal
  std::uint32_t num_restarts = 3;                   // pods: how often the JobSet starts all of them again
  std::vector<Volume> volumes = {};                 // pods: the volumes that they mount

  bool elastic() const { return max.has_value(); }
  std::uint32_t first_hosts() const { return elastic() ? *min : num_hosts.value_or(1); }  // hosts with which the run begins
};

// Seconds between the announcement of the end and the end, beyond the grace: `shoal run` ends its processes meanwhile.
inline constexpr std::uint32_t kEndMargin = 20;

// Reads --hosts: a number, or names with commas between them.
Result<void> read_hosts(const std::string& text, LaunchRequest& request);
// Reads a limit: 90s, 45m, 4h, 2d, HH:MM:SS or D-HH:MM:SS. A plain number is refused, because schedulers take it for different units.
Result<std::chrono::seconds> read_limit(const std::string& text);
// Reads --volume: CLAIM:PATH.
Result<Volume> read_volume(const std::string& text);
// Reads --env: NAME=VALUE, or NAME, for which `callers` has the value of the caller's variable, if it is set.
Result<LaunchVariable> read_variable(const std::string& text, const std::function<std::optional<std::string>(const std::string&)>& callers);

// The settings of Shoal for a training that mean the same on all hosts. If a launcher's hosts do not get the caller's environment, it
// passes on those that are set. They are no secrets, paths or names of hosts.
extern const std::vector<std::string> kTrainingSettings;

// The request with its defaults filled in. Refuses options that contradict each other (reason Contradiction), and values that a scheduler
// would misread (BadValue).
Result<LaunchRequest> complete(LaunchRequest request, LaunchTarget launcher);

// The options of `shoal run` and its script that all hosts have in common. The number of hosts is not among them.
std::vector<std::string> run_words(const LaunchRequest& request);

// The text as one word of a POSIX shell.
std::string shell_word(const std::string& text);
// The words behind each other, each quoted.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace shoal::scheduler::cli
