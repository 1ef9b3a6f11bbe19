// The main of a C++ driver, and of its workers: they are processes of the same binary.
//
//   int main(int argc, char** argv) {
//     return shoal::main<Counter, shoal::Functions<&mean>>(argc, argv, [](shoal::Context& context) -> shoal::Result<void> { ... });
//   }
//
// In a worker it serves the one actor of its process and never calls `run`. A driver connects to the cluster at $SHOAL_ADDRESS ("auto": the
// latest of this user), or starts one of its own that ends with it: the shoal command's `role local`, at $SHOAL_BINARY, else beside the
// program, else where this workspace's Bazel built both, else on PATH. The environment is read here and nowhere else.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/api/worker.h"

namespace shoal {

// The cluster that a driver without $SHOAL_ADDRESS starts, and its job.
struct MainOptions {
  double num_cpus = -1;  // logical; negative: as many as this process may use
  double num_gpus = -1;  // below 0: as many as CUDA_VISIBLE_DEVICES leaves of this host's
  double memory = -1;    // bytes; negative: what the machine has
  std::map<std::string, double> resources = {};
  std::string name_space = "";  // of the names of actors and placement groups; empty: one of this job's own
  bool print_logs = true;       // what actors print appears on this process's stdout and stderr
  // Of all processes of this job, unless the options of an actor or a function say otherwise (options.h). On any cluster.
  std::map<std::string, std::string> env = {};
  std::string working_dir = "";
};

}  // namespace shoal

namespace shoal::actors::api {

int run_main(int argc, char** argv, const Program& program, const std::function<int(Context&)>& run, const MainOptions& options);

// InvalidArgument/BuildMismatch when a worker's own build id is not the one that its driver wants.
Result<void> check_build_id(const std::string& own, const std::string& wanted, const std::string& program);

// Prints an Error as the shoal command does; returns the exit code for it.
int print_error(const Error& error);

}  // namespace shoal::actors::api

namespace shoal {

// Returns the process's exit code: what `run` returns, which is an int, or a Result<void> whose error is printed. 1 when there is no
// cluster to run on.
template <class... Actors, class Run>
int main(int argc, char** argv, Run&& run, const MainOptions& options = {}) {
  static_assert(sizeof...(Actors) > 0, "shoal::main is told actors and functions: shoal::main<Counter, Functions<&f>>(argc, argv, run)");
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
