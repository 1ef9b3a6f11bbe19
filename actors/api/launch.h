// Requests for workers of this program: processes of the same binary that host an actor or run functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/future.h"
#include "actors/api/options.h"

namespace shoal::actors::api {

// The data of an actor's construction: sent in the construct call, or kept by the head (the creation spec) for restarts and detached
// actors.
struct Making {
  std::string full_class_name;
  std::int32_t rank = 0, world_size = 1, max_concurrency = 1;
  Value args = {};
  bool restarts = false;  // if its process ends unrequested
};
// InvalidArgument if the arguments are too large to be kept.
Result<std::string> to_creation_spec(const Making& making);
Result<Making> from_creation_spec(std::string_view creation_spec);

// The handle bytes found by an actor's name: they contain its class. Python reads them as a pickle that marks a C++ actor.
std::string to_found(std::string_view full_class_name);
// nullopt for an actor of another language.
std::optional<std::string_view> class_of_found(std::string_view handle);

Result<Resources> resources_of(double num_cpus, double num_gpus, double memory, std::map<std::string, double> others);

class Launcher {
 public:
  struct Options {
    std::string program;  // this binary
    std::string build_id;
    std::string name_space;
    // Defaults for its processes.
    std::map<std::string, std::string> env = {};
    std::string working_dir = "";  // empty: this process's
  };
  Launcher(Hub& hub, Options options) : hub_(hub), options_(std::move(options)) {}

  struct Surroundings {
    const shoal::Where& where;
    const std::map<std::string, std::string>& env;
    const std::string& working_dir;
  };
  // A gang of `count` with new ids; the caller fills in the rest. InvalidArgument for a program without a build id, or an invalid folder.
  Result<GangSpec> gang(std::size_t count, std::string_view class_name, const Resources& each, const Surroundings& around) const;
  // The call that constructs the actor.
  Result<ValueFuture> construct(ActorId actor, const Making& making, std::vector<ValueFuture> deps) const;

  const std::string& name_space() const { return options_.name_space; }

 private:
  Hub& hub_;
  const Options options_;
};

// A worker's variable with the names of those that its launch set (separated by ':'), which its own processes inherit.
inline constexpr const char* kEnvNames = "SHOAL_ENV_NAMES";

}  // namespace shoal::actors::api
