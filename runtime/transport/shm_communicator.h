// The Communicator of ranks that share memory: one mapping, in which every rank writes what it brings and reads what the others bring.
//
// One copy in and one reduction (or copy) out, chunk by chunk (shm_operation.h). Whoever waits for an operation advances all that are
// pending; a thread of its own does so for those that were started in the background, and exists from the first of them on. A sleeper is
// woken by the board's bell, also when the node writes down a death.
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
#include "runtime/transport/shm_operation.h"

namespace shoal::runtime {

class ShmCommunicator final : public Communicator, public std::enable_shared_from_this<ShmCommunicator> {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string name;                               // the same on every rank, and of no other group
    Duration warn_after = std::chrono::seconds(5);  // a wait says for whom it waits
    Duration timeout = std::chrono::seconds(600);   // an operation that takes longer fails
    int spins = 300;                                // looks before a wait sleeps; 0 where ranks outnumber cores
    std::size_t chunk_bytes = 256 << 10;            // of a rank's stream, at least 64 per rank
    std::size_t channel_bytes = 64 << 10;           // of a message between two ranks
    std::function<bool()> interrupted;              // asked by waits now and then; true ends the wait
    std::function<void(const std::string&)> warn;
    // Zeroed memory that all ranks share who ask for this name. With `member` not negative it begins with a Board, on which somebody
    // writes that member's death.
    std::function<Result<std::shared_ptr<Mapping>>(const std::string& name, std::size_t bytes, int member)> memory;
  };
  // Does not wait for the other ranks: the first operation does.
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
  // Of a failed group: ends what the operation still does. False when a signal came first.
  bool settle(const OperationPtr& operation);
  // Advances what is pending until `until` is done or the group has failed. `asking` may be interrupted.
  Result<void> drive(const OperationPtr& until, bool asking);
  bool advance_all();
  bool collect_heads();
  void start_collective(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  // What a wait does when nothing has moved for a while: says where it waits, and finds out what is wrong.
  Result<void> look(const OperationPtr& until, bool asking);
  void warn_if_late(const ShmOperation& operation, int missing, TimePoint now);
  void check_left(const ShmOperation& operation, int missing, TimePoint now);
  bool forked() const;  // this process is a child of the rank
  std::optional<Error> unusable() const;
  int first_absent() const;  // a rank that has never been there, or -1
  int first_lost() const;    // a rank that is gone without having left, or -1
  bool trouble();            // true when the group has failed; writes down who is lost
  Error cause_for(const ShmOperation& operation) const;
  void run_lane();

  const pid_t pid_;
  const Options options_;
  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Mapping> mapping_;
  const std::uint64_t generation_;
  const ShmMemory memory_;
  Board board_;
  mutable Ledger ledger_;
  std::shared_ptr<Mapping> former_;  // the generation before, whose board tells of deaths until all have come to this one
  std::vector<int> former_ranks_;

  // Queues, for every thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool driving_ = false;
  bool stopping_ = false;
  int program_waits_ = 0;  // threads of the program that wait
  std::thread::id submitter_;
  bool several_submitters_ = false;  // then a wait of one proves nothing
  std::uint64_t sequence_ = 0;
  std::uint64_t num_windows_ = 0;
  std::deque<std::vector<std::size_t>> window_sizes_;  // of every window: this rank's, then by rank
  std::deque<OperationPtr> collectives_;
  std::vector<std::deque<OperationPtr>> sends_, receives_;  // by peer
  std::uint64_t num_background_ = 0;                        // of those pending
  std::atomic<bool> queues_changed_{false};
  bool gone_ = false;

  // Whoever drives.
  std::vector<OperationPtr> heads_;
  bool met_ = false;         // every rank has been there
  std::uint64_t round_ = 0;  // where the next collective begins
  OperationPtr started_;     // the collective whose turn it is
  TimePoint warned_{};
  std::optional<TimePoint> left_since_;
  const ShmOperation* late_ = nullptr;  // what was warned of last

  std::unique_ptr<SideThread> lane_;
};

}  // namespace shoal::runtime
