// The main function of a C++ driver and of its workers, which are processes of the same binary.
//
//   int main(int argc, char** argv) {
//     return shoal::main<Counter, shoal::Functions<&mean>>(argc, argv, [](shoal::Context& context) -> shoal::Result<void> { ... });
//   }
//
// In a worker it serves that process's actor and never calls `run`. A driver connects to the cluster at $SHOAL_ADDRESS ("auto": this
// user's latest). Without it the driver starts its own cluster, which ends with the driver, by the shoal command's `role local`. The
// command is $SHOAL_BINARY, or a file beside the program, in libshoal.so's package, in this workspace's Bazel outputs, or on PATH. Only
// main reads the environment.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/api/worker/program.h"

namespace shoal {

// The cluster that a driver without $SHOAL_ADDRESS starts, and its job.
struct MainOptions {
  double num_cpus = -1;  // logical; negative: the CPUs that this process may use
  double num_gpus = -1;  // negative: this host's GPUs within CUDA_VISIBLE_DEVICES
  double memory = -1;    // bytes; negative: the machine's memory
  std::map<std::string, double> resources = {};
  std::string name_space = "";  // for names of actors and placement groups; empty: the job's own
  bool print_logs = true;       // print the actors' output on this process's stdout and stderr
  // Environment variables for the processes of this job's actors and functions, on any cluster; this process keeps its own. Options of an
  // actor or function override them (options.h).
  std::map<std::string, std::string> env = {};
  std::string working_dir = "";
};

}  // namespace shoal

namespace shoal::actors::api {

int run_main(int argc, char** argv, const Program& program, const std::function<int(Context&)>& run, const MainOptions& options);

// Returns InvalidArgument/BuildMismatch if a worker's build id differs from its driver's.
Result<void> check_build_id(const std::string& own, const std::string& wanted, const std::string& program);

// Prints an Error as the shoal command does; returns its exit code.
int print_error(const Error& error);

}  // namespace shoal::actors::api

namespace shoal {

// Returns the process's exit code. `run` returns it as an int, or returns a Result<void> whose error is printed. It is 1 if there is no
// cluster.
template <class... Actors, class Run>
int main(int argc, char** argv, Run&& run, const MainOptions& options = {}) {
  static_assert(sizeof...(Actors) > 0, "shoal::main takes actors and functions: shoal::main<Counter, Functions<&f>>(argc, argv, run)");
  return actors::api::run_main(
      argc, argv, actors::api::program<Actors...>(),
      [&run](Context& context) -> int {
        if constexpr (std::is_same_v<std::invoke_result_t<Run&, Context&>, Result<void>>) {
          const Result<void> ended = run(context);
          return ended ? 0 : actors::api::print_error(ended.error());
        } else {
          return run(context);
        }
      },
      options);
}

}  // namespace shoal
