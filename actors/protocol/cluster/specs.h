// Requests to start something, as plain values: launches, gangs, placement groups and jobs, with their constraints on placement.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/cluster/fields.h"
#include "actors/protocol/cluster/resources.h"
#include "runtime/core/id.h"

namespace shoal::actors {

// How to start a process.
struct Launch {
  enum class Kind : std::uint16_t {
    kPythonWorker,  // hosts actors; forked from a zygote of `program`
    kPythonScript,  // runs argv as a script; forked from a zygote of `program`
    kProgram,       // runs argv
    kNativeWorker,  // hosts C++ actors: `program` is the driver's own binary, whose build id has to be `build_id`
  };
  static constexpr std::uint16_t kNumKinds = 4;

  Kind kind = Kind::kProgram;
  std::string program;
  std::vector<std::string> argv;
  bool torch = false;  // fork from a zygote that has imported torch
  std::string build_id;
  std::string cwd;
  std::vector<std::pair<std::string, std::string>> env;  // added to the node's own environment
  std::vector<std::string> python_path;                  // put in front of sys.path
  bool operator==(const Launch&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.kind, Kind, kNumKinds, "launch kind");
    SHOAL_FIELD(v.program, Program, OfProcess{});
    SHOAL_FIELD(v.argv, Argv, OfProcess{});
    SHOAL_FIELD(v.torch, Torch);
    SHOAL_FIELD(v.build_id, BuildId);
    SHOAL_FIELD(v.cwd, Cwd, OfProcess{});
    SHOAL_FIELD(v.env, Env, 10'000, "environment", OfProcess{});
    SHOAL_FIELD(v.python_path, PythonPath, OfProcess{});
  }
};

// How bundles of a group are placed on nodes. Pack: on as few nodes as possible. Spread: on as many as possible. The strict forms require
// one node for all, or a different node for each.
enum class Strategy : std::uint16_t { kPack, kSpread, kStrictPack, kStrictSpread };
const char* to_string(Strategy strategy);

// A condition on a node's labels: it has `label`, with a value in `values` (empty: any value). With `negated`, the opposite.
struct LabelMatch {
  static constexpr std::size_t kMax = 1000;  // conditions of one actor or bundle
  std::string label;
  std::vector<std::string> values;
  bool negated = false;
  bool operator==(const LabelMatch&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.label, Label);
    SHOAL_FIELD(v.values, Values);
    SHOAL_FIELD(v.negated, Negated);
  }
};

// Constraints on placement besides free resources.
struct Where {
  GroupId group;             // place into resources of this placement group
  std::int32_t bundle = -1;  // place into this bundle of the group; -1: into any
  NodeId node;               // place on this node
  // With `node`: use another node if that one is gone or could never hold the actor.
  bool soft = false;
  // With `node`: do not wait for room on it. With `soft`, use another node instead; otherwise the request fails as Unschedulable.
  bool at_once = false;
  bool spread = false;  // prefer nodes on which little is placed already
  std::vector<LabelMatch> labels;
  std::vector<LabelMatch> prefers;  // preferred labels: such nodes come first, if they have room
  bool operator==(const Where&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.group, Group);
    SHOAL_FIELD(v.bundle, Bundle);
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.soft, Soft);
    SHOAL_FIELD(v.at_once, AtOnce);
    SHOAL_FIELD(v.spread, Spread);
    SHOAL_FIELD(v.labels, Labels, LabelMatch::kMax, "labels");
    SHOAL_FIELD(v.prefers, Prefers, LabelMatch::kMax, "labels");
  }
};

struct ActorSpec {
  ActorId id;
  std::string class_name;
  Resources resources;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.class_name, ClassName);
    SHOAL_FIELD(v.resources, Resources);
  }
};

// Actors that are placed together or not at all, each in its own process. Their ranks follow the order of `actors`.
struct GangSpec {
  GangId id;
  JobId job;
  std::vector<ActorSpec> actors;
  Launch launch;
  Where where;
  // The process that requested the gang, if a node started it. If that is an actor or a worker of functions, the gang ends with it, unless
  // it is detached. A gang of a driver or a rank of a job ends with its job.
  WorkerId creator;
  // If no present node could ever hold the gang, fail with ResourceExhausted/Infeasible instead of waiting for such a node.
  bool refuse_infeasible = false;

  // Only for a single actor. A name is unique in its namespace while its actor lives. To find the actor by its name returns `handle`, bytes
  // that the head does not interpret. A detached actor is a job of its own, which ends with the actor, so that it outlives the job that
  // made it.
  std::string name, name_space, handle;
  bool get_if_exists = false;  // if a living actor has the name, return it instead
  bool detached = false;
  // Only for a single actor. max_restarts: restarts after ends of its process that were not requested (-1: unlimited). max_task_retries:
  // how often a call that was lost so is sent again. A restart uses `creation_spec`, bytes that the head does not interpret.
  std::int32_t max_restarts = 0, max_task_retries = 0;
  std::string creation_spec;
  static constexpr std::size_t kMaxActors = 4096;
  static constexpr std::size_t kMaxName = 1000, kMaxHandle = 1 << 18, kMaxCreationSpec = 1 << 19;  // limits in bytes
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.actors, Actors, kMaxActors, "actors of a gang");
    SHOAL_FIELD(v.launch, Launch);
    SHOAL_FIELD(v.refuse_infeasible, RefuseInfeasible);
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
    SHOAL_FIELD(v.handle, Handle, ClientBytes{});
    SHOAL_FIELD(v.get_if_exists, GetIfExists);
    SHOAL_FIELD(v.detached, Detached);
    SHOAL_FIELD(v.where, Where);
    SHOAL_FIELD(v.max_restarts, MaxRestarts);
    SHOAL_FIELD(v.max_task_retries, MaxTaskRetries);
    SHOAL_FIELD(v.creation_spec, CreationSpec, ClientBytes{});
    SHOAL_FIELD(v.creator, Creator);
    io.check(v);
  }
};

// Resources that are reserved together or not at all, each bundle on one node. Actors are placed into them later.
struct GroupSpec {
  GroupId id;
  JobId job;
  std::string name, name_space;  // unique while the group lives; the name may be empty
  Strategy strategy = Strategy::kPack;
  std::vector<Resources> bundles;
  std::vector<std::vector<LabelMatch>> labels;  // conditions on the node of each bundle; empty: none
  std::string together;                         // all bundles go to nodes with one value of this label; empty: no such condition
  bool detached = false;                        // the group outlives its job
  static constexpr std::size_t kMaxBundles = 4096;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
    SHOAL_FIELD(v.strategy, Strategy, 4, "strategy");
    SHOAL_FIELD(v.bundles, Bundles, kMaxBundles, "bundles");
    SHOAL_FIELD(v.labels, Labels, kMaxBundles, "labels of bundles", LabelMatch::kMax, "labels");
    SHOAL_FIELD(v.detached, Detached);
    SHOAL_FIELD(v.together, Together);
    io.check(v);
  }
};

// The arguments with which a job was submitted, to be displayed.
struct Submission {
  std::string id;  // chosen by the submitter, or made from the job's id; unique among the head's jobs
  std::string entrypoint;
  std::string runtime_env;  // runtime environment, as JSON
  std::map<std::string, std::string> metadata;
  bool operator==(const Submission&) const = default;
  // Limits in bytes: kMaxId for `id`, kMaxText for each of the other texts.
  static constexpr std::size_t kMaxId = 256, kMaxText = 1 << 16;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.entrypoint, Entrypoint);
    SHOAL_FIELD(v.runtime_env, RuntimeEnv);
    SHOAL_FIELD(v.metadata, Metadata);
    io.check(v);
  }
};

// One driver process or, if num_workers > 0, a gang of processes with torchrun's environment variables.
struct JobSpec {
  std::string name;
  Launch launch;
  std::uint32_t num_workers = 0;
  Resources resources;  // for each process
  bool wait = false;    // wait if no present node could hold it, instead of failing
  pid_t owner = 0;
  Submission submission;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.launch, Launch);
    SHOAL_FIELD(v.num_workers, NumWorkers);
    SHOAL_FIELD(v.resources, Resources);
    SHOAL_FIELD(v.wait, Wait);
    SHOAL_FIELD(v.owner, OwnerPid);
    SHOAL_FIELD(v.submission, Submission);
    io.check(v);
  }
};

}  // namespace shoal::actors
