// The ShardActor: an actor with a mailbox inside its rank's process, placed by the head as one of a gang, addressed by handle, listed.
//
// It owns this rank's rows: units in the node's arenas, models made of them. It alone grants leases, reduces, and opens and closes write
// windows (ShardedModel). Killed by its handle, it ends, not the process: waiting and later engine calls on every rank fail with its name.
// Threads: its mailbox is served on the loop; everything else belongs to the main thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/session/session.h"
#include "fsdp/shard/sharded_model.h"

namespace shoal::fsdp {

class ShardActor final : public actors::Hosted, public std::enable_shared_from_this<ShardActor> {
 public:
  struct Options {
    std::string gang;  // the same on every rank of the mesh, and on no other mesh of the job
    int rank = 0;
    int world_size = 1;
    int replicas = 1;                                             // rows of that many ranks have all shards
    runtime::Duration place_timeout = std::chrono::seconds(600);  // for the whole gang to come
    // As which of how many it is placed, where the ranks of a mesh have several heads (torchrun on several hosts): those of one head. By
    // default as all of them.
    int place_rank = -1;
    int place_size = 0;
    ShardedModel::Options model;
  };
  // Asks the head to place it; does not wait for the others. The session outlives the actor, or the actor leaves it first.
  static Result<std::shared_ptr<ShardActor>> place(actors::Session& session, Options options);
  ~ShardActor() override;

  // A unit in an arena of the node, which is given back with the last reference to the unit. The n-th unit of every rank is the same one.
  // Ranks that share no memory (model.communicator) have arenas of their own.
  Result<std::shared_ptr<ShardedUnit>> add_unit(std::string name, std::vector<Parameter> parameters, ShardedUnit::Options options);
  // A model of these units. Waits until the gang is placed. The n-th model of every rank is the same one. Its memory goes like a unit's.
  // `slots`: as ShardedModel::Options has it.
  Result<std::shared_ptr<ShardedModel>> make_model(ShardedModel::Units units, int slots);

  // Leaves its models, gives its arenas back and uses the session no more. Units and models go on working with what they have mapped.
  void leave();

  int rank() const { return options_.rank; }
  Grid grid() const { return {options_.world_size, options_.replicas}; }
  ActorId id() const { return id_; }
  // By rank; known once the gang is placed.
  const std::vector<ActorId>& members() const { return members_; }
  std::uint64_t generation() const { return generation_; }
  // Why it ended, if somebody killed it.
  std::optional<Error> killed() const;

  // actors::Hosted, on the loop
  void on_call(actors::Incoming incoming) override;
  void on_kill(const Error& cause) override;

 private:
  ShardActor(actors::Session& session, Options options, ActorId id) : session_(&session), options_(std::move(options)), id_(id) {}
  Result<void> await_gang();
  // Of the node, if the ranks share it; with `member` on whose board that rank's death is written.
  Result<Fd> open_memory(const std::string& key, std::size_t bytes, int member = -1);
  // A unit or a model is gone. Not on the loop.
  void give_back(const std::vector<std::string>& arenas, std::int64_t rows, std::size_t bytes);
  void tell_attributes();
  std::string describe() const;

  actors::Session* session_;  // null once it left
  const Options options_;
  const ActorId id_;
  runtime::Future<actors::HostedActor> placed_;
  std::vector<ActorId> members_;
  std::uint64_t generation_ = 0;
  std::vector<std::string> arenas_;  // keys of what this rank opened
  int num_units_ = 0, num_models_ = 0;

  // Between the loop and main.
  mutable std::mutex mutex_;
  std::optional<Error> killed_;
  std::vector<std::weak_ptr<ShardedModel>> models_;
  std::vector<std::shared_ptr<ShardedModel>> kept_;  // of an actor that was killed: the last reference must not go on the loop
  std::int64_t rows_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::fsdp
