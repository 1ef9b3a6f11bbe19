// Requests for workers of this program: processes of the same binary that host an actor or run functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/codec/encode.h"
#include "actors/api/context/future.h"
#include "actors/api/context/options.h"

namespace shoal::actors::api {

// The data of an actor's construction: sent in the construct call, or kept by the head (the creation spec) for restarts and detached
// actors.
struct Making {
  std::string full_class_name;
  std::int32_t rank = 0, world_size = 1, max_concurrency = 1;
  Value args = {};
  bool restarts = false;  // the actor restarts if its process ends without a request to end
};
// Encodes the creation spec. Returns InvalidArgument if the arguments are too large to be kept.
Result<std::string> to_creation_spec(const Making& making);
Result<Making> from_creation_spec(std::string_view creation_spec);

// The bytes that the head returns for an actor's name. They contain its class. Python reads them as a pickle, which marks a C++ actor.
std::string to_found(std::string_view full_class_name);
// The class in such bytes; nullopt for an actor of another language.
std::optional<std::string_view> class_of_found(std::string_view handle);

Result<Resources> resources_of(double num_cpus, double num_gpus, double memory, std::map<std::string, double> others);

class Launcher {
 public:
  struct Options {
    std::string program;  // this binary
    std::string build_id;
    std::string name_space;
    // Defaults for the processes that the program starts.
    std::map<std::string, std::string> env = {};
    std::string working_dir = "";  // empty: this process's working folder
  };
  Launcher(Hub& hub, Options options) : hub_(hub), options_(std::move(options)) {}

  struct Surroundings {
    const shoal::Where& where;
    const std::map<std::string, std::string>& env;
    const std::string& working_dir;
  };
  // A gang of `count` actors with new ids; the caller fills in the rest. Returns InvalidArgument for a program without a build id, and for
  // a working folder that does not exist.
  Result<GangSpec> gang(std::size_t count, std::string_view class_name, const Resources& each, const Surroundings& around) const;
  // The call that constructs the actor.
  Result<ValueFuture> construct(ActorId actor, const Making& making, std::vector<ValueFuture> deps) const;

  const std::string& name_space() const { return options_.name_space; }

 private:
  Hub& hub_;
  const Options options_;
};

// An environment variable of a worker. It has the names, separated by ':', of the variables that the worker's launch has set. Workers that
// the cluster starts for this one get them, too.
inline constexpr const char* kEnvNames = "SHOAL_ENV_NAMES";

}  // namespace shoal::actors::api
