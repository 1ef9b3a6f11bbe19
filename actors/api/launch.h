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
  // `program`: of this binary, whose build is `build_id`.
  Launcher(Hub& hub, std::string program, std::string build_id, std::string name_space)
      : hub_(hub), program_(std::move(program)), build_id_(std::move(build_id)), name_space_(std::move(name_space)) {}

  // A gang of `count`, with new ids; the rest of it is the caller's to fill in. InvalidArgument for a program without a build id.
  Result<GangSpec> gang(std::size_t count, std::string_view class_name, const Resources& each, const shoal::Where& where,
                        const std::map<std::string, std::string>& env) const;
  // The call that constructs the actor.
  Result<ValueFuture> construct(ActorId actor, const Making& making, std::vector<ValueFuture> deps) const;

  const std::string& name_space() const { return name_space_; }

 private:
  Hub& hub_;
  const std::string program_, build_id_, name_space_;
};

}  // namespace shoal::actors::api
