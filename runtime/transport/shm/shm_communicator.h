// The Communicator of ranks that share memory: in one mapping, every rank writes its inputs and reads those of the others.
//
// Data goes chunk by chunk, with one copy in and one reduction or copy out (shm_operation.h). A thread that waits for an operation advances
// all pending ones. The first background operation starts a thread that advances those started in the background. The board's
// bell wakes sleepers, also when the node records a death.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/loop/side_thread.h"
#include "runtime/shm/memory.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/shm/shm_operation.h"

namespace shoal::runtime {

class ShmCommunicator final : public Communicator, public std::enable_shared_from_this<ShmCommunicator> {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string name;                               // equal on every rank, unique to the group
    Duration warn_after = std::chrono::seconds(5);  // time before a wait logs the missing rank
    Duration timeout = std::chrono::seconds(600);   // default time limit of an operation
    int spins = 300;                                // checks before a wait sleeps; 0 where ranks outnumber cores
    std::size_t chunk_bytes = 256 << 10;            // chunk of a rank's stream, at least 64 per rank
    std::size_t channel_bytes = 64 << 10;           // piece of a message between two ranks
    std::function<bool()> interrupted;              // polled by waits; true ends the wait
    std::function<void(const std::string&)> warn;
    // Returns initially zeroed memory, shared by all ranks that ask for this name. If `member` is not negative, the memory begins with a
    // MembershipPage, on which the node records the death of that member.
    std::function<Result<std::shared_ptr<Mapping>>(const std::string& name, std::size_t bytes, int member)> memory;
  };
  // Does not wait for the other ranks; the first operation does.
  static Result<std::shared_ptr<ShmCommunicator>> make(Options options, std::shared_ptr<Clock> clock);
  ~ShmCommunicator() override;

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  std::uint64_t generation() const override { return generation_; }
  const char* transport() const override { return "shm"; }

  WorkPtr all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) override;
  WorkPtr reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) override;
  WorkPtr all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) override;
  WorkPtr broadcast(MutableBytes data, int root, DType dtype, Call call) override;
  WorkPtr all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call) override;
  WorkPtr barrier(Call call) override;
  WorkPtr send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;
  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override;
  std::optional<Error> failed() const override;
  std::vector<int> lost() const override;
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  class ShmWork;
  using OperationPtr = std::shared_ptr<ShmOperation>;

  ShmCommunicator(Options options, std::shared_ptr<Clock> clock, std::shared_ptr<Mapping> mapping, std::uint64_t generation);
  static Result<std::shared_ptr<ShmCommunicator>> make_generation(Options options, std::shared_ptr<Clock> clock, std::uint64_t generation);
  WorkPtr submit_collective(CollectiveSpec spec, Call call);
  WorkPtr submit_message(int from, int to, MutableBytes data, DType dtype, std::uint32_t tag, Call call);
  WorkPtr submitted(std::unique_lock<std::mutex> lock, OperationPtr operation);

  Result<void> wait(const OperationPtr& operation);
  // After the group's failure: ends the operation's use of its buffers. Returns false if a signal interrupted the wait.
  bool settle(const OperationPtr& operation);
  // Advances pending operations until `until` is done or the group has failed. `asking`: polls options_.interrupted.
  Result<void> drive(const OperationPtr& until, bool asking);
  bool advance_all();
  bool collect_heads();
  void start_collective(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  // Called without progress for a while: records the wait in the ledger, and checks for divergence, lateness and lost ranks.
  Result<void> look(const OperationPtr& until, bool asking);
  void warn_if_late(const ShmOperation& operation, int missing, TimePoint now);
  void check_left(const ShmOperation& operation, int missing, TimePoint now);
  bool forked() const;  // true in a forked child of the rank
  std::optional<Error> unusable() const;
  int first_absent() const;  // a rank that has not joined yet, or -1
  int first_lost() const;    // a rank that died without leave(), or -1
  bool trouble();            // true when the group has failed; fails it if a rank is lost
  Error cause_for(const ShmOperation& operation) const;
  void run_lane();

  const pid_t pid_;
  const Options options_;
  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Mapping> mapping_;
  const std::uint64_t generation_;
  const ShmMemory memory_;
  MembershipPage membership_page_;
  mutable Ledger ledger_;
  std::shared_ptr<Mapping> former_;  // previous generation, whose board is checked for deaths until all ranks have joined
  std::vector<int> former_ranks_;

  // Queues and state, guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool driving_ = false;
  bool stopping_ = false;
  int program_waits_ = 0;  // number of the program's threads in wait()
  std::thread::id submitter_;
  bool several_submitters_ = false;  // if so, a waiting thread does not prove a cycle
  std::uint64_t sequence_ = 0;
  std::uint64_t num_windows_ = 0;
  std::deque<std::vector<std::size_t>> window_sizes_;  // per window: this rank's size, then all sizes by rank
  std::deque<OperationPtr> collectives_;
  std::vector<std::deque<OperationPtr>> sends_, receives_;  // by peer
  std::uint64_t num_background_ = 0;                        // pending background operations
  std::atomic<bool> queues_changed_{false};
  bool gone_ = false;

  // State of the driving thread.
  std::vector<OperationPtr> heads_;
  bool met_ = false;         // every rank has joined
  std::uint64_t round_ = 0;  // first round of the next collective
  OperationPtr started_;     // the collective under way
  TimePoint warned_{};
  std::optional<TimePoint> left_since_;
  const ShmOperation* late_ = nullptr;  // last operation of a warning

  std::unique_ptr<SideThread> lane_;
};

}  // namespace shoal::runtime
