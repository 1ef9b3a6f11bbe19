// Keeps this rank's replica on its buddy up to date, and holds the replicas of the ranks whose buddy this rank is (replica.h).
//
// optimizer.step() records the update, calls send_step(), and commits with all ranks once the buddy has recorded it. Then it calls
// committed(), upon which the link's thread makes the updates of the replicas that it holds, while the rank computes. A buddy accepts
// an owner's next step only after it has made the last update. So at most one step is on its way.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/protect/replica.h"
#include "runtime/core/owner_process.h"
#include "runtime/loop/clock.h"
#include "runtime/shm/memory.h"
#include "runtime/transport/message_layer.h"

namespace shoal::fsdp {

class ReplicaLink {
 public:
  // A rank whose replica this process holds, and the replica's zeroed memory.
  struct Ward {
    int rank;
    runtime::Mapping memory;
    StepRecord::Spec spec;
  };
  struct Options {
    std::shared_ptr<runtime::MessageLayer> layer;  // among all ranks; the link's thread drives it
    std::shared_ptr<runtime::Clock> clock;
    int buddy = -1;  // -1: this rank has none
    std::vector<Ward> wards = {};
    // Waits in the main thread until `ready`, or fails because a rank is gone. `missing`: the awaited rank.
    std::function<Result<void>(const std::function<bool()>& ready, const std::string& for_what, int missing)> wait = {};
    std::function<void()> changed = {};  // lets wait() look again; any thread
  };
  struct Costs {
    std::size_t memory_bytes = 0;                    // replicas that this process holds
    std::uint64_t steps = 0, step_bytes = 0;         // steps sent, and bytes of the last one
    std::uint64_t contents = 0, contents_bytes = 0;  // messages with rows and states, and bytes of the last one
    double waited_s = 0;                             // time in which optimizer steps have waited for the buddy
  };

  // `record` and `arenas`: this rank's, which outlive the link.
  ReplicaLink(StepRecord record, Memories arenas, Options options);
  ~ReplicaLink();
  ReplicaLink(const ReplicaLink&) = delete;

  // ---- main thread ----
  // Sends rows and states of a complete step, and waits until the buddy has them.
  Result<void> send_contents(std::uint64_t step) { return send(Request{ReplicaHeader::Kind::kContents, step, false}); }
  // Sends the recorded update of a step, and waits until the buddy has recorded it. A call after an interrupted one only waits.
  // `with_contents`: states have changed since the last step.
  Result<void> send_step(std::uint64_t step, bool with_contents) { return send(Request{ReplicaHeader::Kind::kStep, step, with_contents}); }
  // The step counts: all ranks have recorded it.
  void committed(std::uint64_t step);
  // Ends the thread; the replicas stay. Idempotent. A forked child only forgets the link.
  void stop();
  Costs costs() const;

 private:
  using Transfer = runtime::MessageLayer::Transfer;
  struct Request {
    ReplicaHeader::Kind kind;
    std::uint64_t step;
    bool with_contents;
    std::uint64_t number = 0;
  };
  struct Sending {
    ReplicaAnswer answer;
    Transfer transfer;
  };
  struct Held {
    Held(ReplicaLink& link, Ward ward);
    const int rank;
    const runtime::Mapping memory;
    Replica replica;
    StreamReceiver receiver;
  };

  Result<void> send(Request request);
  void run();
  // A result of true means progress.
  bool send_requested();
  bool take_answers();
  bool serve(Held& held);
  bool drop_sent();

  void answer(int rank, const ReplicaAnswer& answer);
  void receive_answer();
  void fail_sends(Error why);

  Options options_;
  std::uint64_t requests_ = 0;  // main thread

  // For the link's thread only.
  ReplicaSource source_;
  std::optional<StreamSender> sender_;  // to the buddy
  bool sending_ = false;
  std::optional<ReplicaAnswer> ready_;  // the buddy's last kReady: it can take the next step
  ReplicaAnswer arriving_;
  Transfer answered_;
  std::vector<std::unique_ptr<Held>> held_;
  std::list<Sending> answers_;

  mutable std::mutex mutex_;
  std::optional<Request> requested_;  // guarded by mutex_, as are the next two
  std::optional<Error> failed_;
  Costs costs_;
  std::optional<Request> sent_;              // main thread: the last request
  std::atomic<std::uint64_t> got_{0};        // number of the last request that the buddy has; after an error kNoMore, which ends all waits
  std::atomic<std::uint64_t> committed_{0};  // the last step that counts
  std::atomic<bool> stopping_{false};
  const OwnerProcess process_;
  std::thread thread_;
};

}  // namespace shoal::fsdp
