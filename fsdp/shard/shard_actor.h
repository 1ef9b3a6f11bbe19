// The ShardActor: an actor with a mailbox inside its rank's process. The head places it as a member of a gang and lists it; callers use its
// handle.
//
// It owns this rank's rows: units in the node's arenas, and models of them. Only it grants leases, reduces, and opens and closes write
// windows (ShardedModel). Killing it by its handle does not end the process: pending and later engine calls on every rank fail with its
// name. Threads: the loop serves its mailbox; everything else belongs to the main thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/session/session.h"
#include "fsdp/protect/adoption.h"
#include "fsdp/protect/protected_shard.h"
#include "fsdp/protect/replica_link.h"
#include "fsdp/shard/sharded_model.h"

namespace shoal::fsdp {

class ShardActor final : public actors::Hosted, public std::enable_shared_from_this<ShardActor> {
 public:
  struct Options {
    std::string gang;  // the gang's name: equal on every rank of the mesh, unique among the job's meshes
    int rank = 0;
    int world_size = 1;
    int replicas = 1;                                             // number of replicas, each with all shards
    runtime::Duration place_timeout = std::chrono::seconds(600);  // for the placement of the whole gang
    // Where the ranks of a mesh have several heads (torchrun on several hosts): rank and size of the gang under this rank's head. Default:
    // those of the mesh.
    int place_rank = -1;
    int place_size = 0;
    ShardedModel::Options model;
    // For ranks on several hosts (model.host_of_rank): makes the messages of one model. Every rank calls it, with the same name.
    std::function<Result<std::shared_ptr<runtime::MessageLayer>>(const std::string& name)> open_layer = {};
  };
  // Requests placement from the head without waiting for the other ranks. An actor that outlives the session, and a forked child's copy,
  // send the session no requests.
  static Result<std::shared_ptr<ShardActor>> place(actors::Session& session, Options options);
  ~ShardActor() override;

  // Makes a unit in an arena of the node, which is freed with the last reference to the unit. The n-th units of all ranks are one unit.
  // The ranks of a node share its arena. `arena_key`: the arena of another mesh's unit with the same parameters, which this unit takes over
  // with its values (ShardedUnit::fits_any_mesh); empty: a new arena. `before`: that unit, if this process has it.
  Result<std::shared_ptr<ShardedUnit>> add_unit(std::string name, std::vector<Parameter> parameters, ShardedUnit::Options options,
                                                const std::string& arena_key = "", const ShardedUnit* before = nullptr);
  // Makes a model of these units; waits until the gang is placed. The n-th models of all ranks are one model. Its memory is freed like a
  // unit's. `slots`: as in ShardedModel::Options.
  Result<std::shared_ptr<ShardedModel>> make_model(Units units, int slots);

  // Makes this rank's step record of a model, in a memory that outlives this process. From now on the arenas of its units outlive it, too.
  // `states`: the arrays of its optimizer. `step`: optimizer steps that are complete. `shared`: the arrays that the mesh's ranks share,
  // with those states that lie there; null: all states lie in the record.
  Result<std::shared_ptr<ProtectedShard>> protect(const ShardedModel& model, const std::vector<StateSpec>& states, std::uint64_t step,
                                                  std::shared_ptr<SharedArrays> shared);
  // Opens a memory for arrays of these units, which all ranks of the mesh share and other meshes can take over. `key`: the key of another
  // mesh's arrays; empty: a new memory. `before`: this process's arrays on another mesh, or null. Returns null if the ranks cannot share
  // arrays.
  Result<std::shared_ptr<SharedArrays>> share_arrays(const Units& units, std::vector<StateSpec> states, const std::string& key,
                                                     const std::shared_ptr<SharedArrays>& before);
  // Keeps a replica of this rank's record at its buddy, and holds replicas for others. Every rank calls it, with the same `buddies`: by
  // rank, a rank of another host, or -1. The replicas' memory outlives this process. `shard` and `model` outlive the link's thread.
  Result<std::shared_ptr<ReplicaLink>> replicate(const std::shared_ptr<ShardedModel>& model, const std::shared_ptr<ProtectedShard>& shard,
                                                 const std::vector<int>& buddies);
  // Opens the step record of a dead rank of this host, or its replica, and the arenas that the record refers to. They stay at the node
  // until release(), or until this process leaves; the death of this process frees nothing. Returns NotFound if there is no such record.
  Result<std::shared_ptr<AdoptedShard>> adopt(const std::string& key);
  // The shard's rows and states have new owners: frees the memories that no other process holds. They stay mapped while `shard` lives.
  void release(const AdoptedShard& shard) { give_back(shard.keys(), 0, 0); }
  // Frees each of these memories of the node, unless a living process holds it.
  void free_unheld(const std::vector<std::string>& keys);

  // Leaves all models (ShardedModel::leave), frees the arenas and stops using the session. Units and models keep working on their mapped
  // memory. Does nothing in a forked child.
  void leave();

  int rank() const { return options_.rank; }
  Grid grid() const { return {options_.world_size, options_.replicas}; }
  ActorId id() const { return id_; }
  // Actor ids by rank; empty until the gang is placed.
  const std::vector<ActorId>& members() const { return members_; }
  std::uint64_t generation() const { return generation_; }
  // The host of each rank; empty if all ranks share memory.
  const std::vector<int>& hosts() const { return options_.model.host_of_rank; }
  // The cause of this actor's end, if it was killed.
  std::optional<Error> killed() const;

  // Methods of actors::Hosted, called on the loop.
  void on_call(actors::Incoming incoming) override;
  void on_kill(const Error& cause) override;

 private:
  ShardActor(actors::Session& session, Options options, ActorId id)
      : session_(session.outlived()), clock_(session.loop().clock()), options_(std::move(options)), id_(id) {}
  Result<void> await_gang();
  // The first part of the names of this host's memories.
  std::string memory_name() const;
  // Makes this rank's part of the pages of a memory that it shares with the other ranks of its host.
  void populate_share(const runtime::Mapping& memory) const;
  // Opens memory of the node. The node marks the death of `member` on the memory's membership page.
  Result<Fd> open_memory(const std::string& key, std::size_t bytes, int member = -1);
  Result<Fd> open_lasting(const std::string& key, std::size_t bytes);
  // Frees the memory of a destroyed unit or model. Not on the loop.
  void give_back(const std::vector<std::string>& arenas, std::int64_t rows, std::size_t bytes);
  Result<Fd> open_arena(const std::string& key, std::size_t bytes, int member, bool lasting);
  // False after leave().
  bool is_open() const { return !left_ && !session_->forked(); }
  void report_attributes();
  std::string describe() const;

  const std::shared_ptr<actors::Outlived<actors::Session>> session_;
  const std::shared_ptr<runtime::Clock> clock_;
  bool left_ = false;
  const Options options_;
  const ActorId id_;
  runtime::Future<actors::HostedActor> placed_;
  std::vector<ActorId> members_;
  std::uint64_t generation_ = 0;
  std::vector<std::string> arenas_;  // keys of the arenas that this rank opened
  int num_units_ = 0, num_models_ = 0, num_protected_ = 0, num_shared_ = 0;

  // Shared between the loop and the main thread.
  mutable std::mutex mutex_;
  std::optional<Error> killed_;
  std::vector<std::weak_ptr<ShardedModel>> models_;
  std::vector<std::weak_ptr<ReplicaLink>> replicas_;
  std::vector<std::shared_ptr<ShardedModel>> kept_;  // models of a killed actor: the last reference must not be dropped on the loop
  std::int64_t rows_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::fsdp
