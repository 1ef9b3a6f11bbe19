// A group's operations on NCCL: the program's threads issue them, a thread watches them.
//
// The thread that submits an operation puts it on the stream in its turn on the device (nccl_issue_order.h), so that NCCL gets all groups'
// operations in the program's order. It cannot wait for the comparison of the ranks' calls: the watching thread compares them while the
// device works, and aborts what differs. The watching thread issues only what waits for another rank: a lane's first message, and all of a
// transport whose polls issue (NcclApi::issues_in_polls).
//
// The watching thread sleeps between looks, at most 0.2 ms while operations are pending: NCCL and the device signal nothing. The control
// communicator carries the group's failure: the first failure of one rank becomes the cause on all.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/loop/side_thread.h"
#include "runtime/transport/nccl/nccl_agreement.h"
#include "runtime/transport/nccl/nccl_message_lane.h"

namespace shoal::runtime {

class NcclDriver {
 public:
  struct Parts {
    const NcclApi* api = nullptr;
    std::shared_ptr<const Device> device;
    std::shared_ptr<Communicator> control;
    std::shared_ptr<Clock> clock;
    Duration timeout{};                 // for operations that set none
    Duration in_flight{};               // how long an operation that all ranks have begun may still take after a failure
    std::function<bool()> interrupted;  // polled by waits of the program's threads; true ends the wait
  };
  // `channel` is connected.
  NcclDriver(Parts parts, NcclChannel channel);
  // Ends the thread. Operations that are pending then fail.
  ~NcclDriver();

  using OperationPtr = std::shared_ptr<NcclOperation>;
  using MakeCollective = std::function<std::shared_ptr<NcclCollective>(std::uint64_t sequence)>;

  // ---- any thread ----

  // Submits the operation that `make` makes from its number. The operation begins once the stream `after` has come to this call; without a
  // stream, at once. Returns once NCCL has put it on the stream, for which a communicator's first operation may need the other ranks'
  // calls. A failure or a signal until then ends the group, and wait() returns the cause. Cancelled/Interrupted: a signal came before any
  // call of NCCL, and nothing was submitted. `timeout`: of the wait for the turn; the communicator's if it is 0.
  Result<OperationPtr> submit(const MakeCollective& make, std::optional<CudaStream> after, Duration timeout);
  Result<OperationPtr> submit(std::shared_ptr<NcclMessage> message, std::optional<CudaStream> after);
  // Waits for the end of an operation. After Cancelled/Interrupted the operation goes on.
  Result<void> wait(const NcclOperation& operation);
  // Makes `stream` wait for an operation, and returns once the operation is on its way. Until then it waits: a signal ends the wait, or
  // DeadlineExceeded/Late a moment after the operation's time limit, even if the watching thread is stuck in the library.
  Result<void> order_after(const NcclOperation& operation, CudaStream stream);
  // Returns once no operation of a failed group is under way. Cancelled/Interrupted after a signal.
  Result<void> wait_until_closed();

 private:
  using CollectivePtr = std::shared_ptr<NcclCollective>;
  using MessagePtr = std::shared_ptr<NcclMessage>;

  // With the mutex: gives an operation its events, and records that `after` has come to it.
  std::optional<Error> prepare(NcclOperation& operation, std::optional<CudaStream> after);
  Result<Event> take_event();
  // The turns of a thread that submits: this group's, then the device's, which no thread has while it waits for the group's.
  struct Turns {
    NcclIssueOrder::Turn group;
    std::optional<NcclIssueOrder::Turn> device;  // nothing for a transport whose polls issue
  };
  Result<Turns> take_turns(Duration timeout);
  // Puts an operation on its stream. Gives the device's turn back if NCCL connects ranks for it.
  void issue(NcclOperation& operation, NcclChannel& channel, Turns& turns);
  Result<void> put_on_stream(NcclOperation& operation, NcclChannel& channel, Turns& turns);
  Result<void> signals(TimePoint& at) const;
  void mark_on_stream(NcclOperation& operation);

  // ---- the thread ----
  void run();
  void take_submitted();
  // Advances all operations; after a failure closes the group. Returns true if any made progress.
  bool step();
  Result<bool> advance_all();
  Result<bool> advance_collectives();
  void open_if_through(NcclMessageLane& lane);
  Result<bool> advance_lane(NcclMessageLane& lane);
  Result<bool> advance(NcclOperation& operation, NcclChannel& channel);
  // The checks of a group that makes no progress: time limits, ranks that are gone.
  Result<void> check();
  Result<void> check_operation(NcclOperation& operation, const std::vector<int>& lost, int other, TimePoint now) const;
  // After a failure: completes what all ranks have begun, aborts the rest, and ends each operation with the cause.
  void close(const Error& cause);
  // `issuing`: a thread that issues may still be in the library, and so use the events of what it issues.
  void end_all(const Error& cause, bool issuing);
  bool complete_begun();
  // Aborts, and waits until the device uses no buffer of an operation any more; for a moment only once the driver is being destroyed.
  void abort_channels();
  bool idle() const;
  void rest();  // sleeps for a moment
  // To be called with the mutex held.
  NcclMessageLane* find_lane(const NcclMessage& message);
  NcclMessageLane& lane_of(const NcclMessage& message);
  enum class Events { kReuse, kInUse };
  void finish(NcclOperation& operation, std::optional<Error> error, Events events = Events::kReuse);
  Duration timeout_of(const NcclOperation& operation) const;

  const Parts parts_;
  const std::shared_ptr<NcclIssueOrder> order_;
  NcclChannel channel_;
  NcclAgreement agreement_;

  // A thread has this turn while it issues to this group. The end of a failed group takes it, so that no thread issues then.
  NcclIssueOrder issuing_;
  std::mutex mutex_;
  std::condition_variable submitted_, changed_, rested_;
  // Guarded by mutex_.
  std::deque<CollectivePtr> new_collectives_;
  std::deque<MessagePtr> new_messages_;
  std::vector<Event> events_;  // events that no operation uses
  std::uint64_t sequence_ = 0;
  bool stopping_ = false, closed_ = false, nudged_ = false;

  // For the watching thread only, but it changes lanes_ with mutex_ held, because other threads read the map.
  std::deque<CollectivePtr> collectives_;
  std::size_t num_on_stream_ = 0, num_agreed_ = 0;  // how many at the front of collectives_ are on the stream, or agreed
  std::map<std::pair<NcclMessage::Way, int>, NcclMessageLane> lanes_;
  TimePoint check_at_{};

  std::unique_ptr<SideThread> thread_;  // last, because it uses all other members
};

}  // namespace shoal::runtime
