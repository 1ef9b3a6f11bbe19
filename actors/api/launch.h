// How workers of this program are asked for: processes of the same binary, that host an actor or run functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/future.h"
#include "actors/api/options.h"

namespace shoal::actors::api {

// What a worker makes its actor from: in the call that constructs it, and (the birth) with the head, for one that makes itself.
struct Making {
  std::string full_class_name;
  std::int32_t rank = 0, world_size = 1, max_concurrency = 1;
  Value args = {};
  bool restarts = false;  // when its process ends unasked
};
// InvalidArgument for one whose arguments are too large to be kept.
Result<std::string> to_birth(const Making& making);
Result<Making> from_birth(std::string_view birth);

// What others find by an actor's name: the bytes say its class, and to Python, which reads them as a pickle, that it is of C++.
std::string to_found(std::string_view full_class_name);
// Nothing for one of another language.
std::optional<std::string_view> class_of_found(std::string_view handle);

Result<Resources> resources_of(double num_cpus, double num_gpus, double memory, std::map<std::string, double> others);

class Launcher {
 public:
  struct Options {
    std::string program;  // this binary,
    std::string build_id;
    std::string name_space;
    // What its processes get beside what theirs are told.
    std::map<std::string, std::string> env = {};
    std::string working_dir = "";  // none: where this process is
  };
  Launcher(Hub& hub, Options options) : hub_(hub), options_(std::move(options)) {}

  struct Surroundings {
    const shoal::Where& where;
    const std::map<std::string, std::string>& env;
    const std::string& working_dir;
  };
  // A gang of `count`, with new ids; the rest of it is the caller's to fill in. InvalidArgument for a program without a build id, and for a
  // folder that is none.
  Result<GangSpec> gang(std::size_t count, std::string_view class_name, const Resources& each, const Surroundings& around) const;
  // The call that constructs the actor.
  Result<ValueFuture> construct(ActorId actor, const Making& making, std::vector<ValueFuture> deps) const;

  const std::string& name_space() const { return options_.name_space; }

 private:
  Hub& hub_;
  const Options options_;
};

// Of the environment of a worker: which of its variables its launch had set, so that what it starts gets them, too (names, with ':'
// between).
inline constexpr const char* kEnvNames = "SHOAL_ENV_NAMES";

}  // namespace shoal::actors::api
