// The commands, each a function from its options to an exit code. main.cc reads the command line and the environment,
// these do not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/session/role.h"
#include "scheduler/cli/client.h"

namespace shoal::scheduler::cli {

struct Common {
  Target target;
  bool json = false;
  std::string self;    // this executable's path
  std::string python;  // the interpreter beside it
};

struct StartOptions {
  bool head = false;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  double num_cpus = -1, num_gpus = -1, memory = -1;  // -1: what the machine has
  std::vector<std::string> resources;                // NAME=AMOUNT
  std::vector<std::string> labels;                   // NAME=VALUE
  std::string token_file;
};
int start(const Common& common, const StartOptions& options);

struct StopOptions {
  bool all = false;
  double grace_s = 5;
};
int stop(const Common& common, const StopOptions& options);

int status(const Common& common);
int list(const Common& common, const std::string& what);

struct LogsOptions {
  std::string id;  // of a job, worker or actor; "" is the latest job
  bool follow = false;
  std::uint64_t tail_lines = 0;  // 0: all that is kept
};
int logs(const Common& common, const LogsOptions& options);

struct SubmitOptions {
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD
  bool command = false;            // it was given after --
  std::uint32_t num_workers = 0;
  double num_cpus = -1, num_gpus = 0;
  std::vector<std::string> resources;
  bool wait = false;
  std::string name;
  std::string cwd;
  std::vector<std::pair<std::string, std::string>> env;
};
int submit(const Common& common, const SubmitOptions& options);

int doctor(const Common& common);

// Pieces that several commands use.
Result<actors::Resources> parse_resources(const StartOptions& options);
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);
Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts);

// Starts a role of this executable in a session of its own and waits for its first word.
Result<actors::StartedRole> start_role(const std::string& self, const actors::SessionFolder& folder, std::vector<std::string> words);
Result<actors::SessionFolder> new_session(const std::string& root);

}  // namespace shoal::scheduler::cli
