// A Communicator over a MessageLayer, for ranks that share no memory: collectives and messages in chunks, several in flight, without
// threads that spin. Only the layer differs between UCX and other networks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "runtime/transport/communicator_request.h"
#include "runtime/transport/messages/message_group.h"
#include "runtime/transport/pending_operations.h"

namespace shoal::runtime {

class MessageCommunicator final : public Communicator, private OperationDriver, public std::enable_shared_from_this<MessageCommunicator> {
 public:
  static Result<std::shared_ptr<Communicator>> make(CommunicatorRequest request, std::shared_ptr<Clock> clock);
  ~MessageCommunicator() override;

  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  std::uint64_t generation() const override { return generation_; }
  const char* transport() const override { return group_.layer()->name(); }

  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override;
  std::optional<Error> failed() const override;
  std::vector<int> lost() const override;
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  class MessageWork;
  MessageCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<MessageLayer> layer,
                      std::vector<int> ranks, int rank, std::uint64_t generation);

  WorkPtr start_collective(CollectiveSpec spec, Call call) override;
  WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;

  WorkPtr submitted(PendingOperations::Lock lock, OperationPtr operation);
  std::optional<Error> unusable() const;
  // Runs `act` as the driving thread. A thread that drives gives its turn up for this.
  template <class F>
  void in_turn(PendingOperations::Lock& lock, F&& act) const;

  Result<void> drive(const OperationPtr& until) override;
  void wake() override;
  bool wanted() const override { return wanted_ > 0; }
  bool has_failed() const override;
  bool over(bool drove) const override;
  Error failure_in(const std::string& what) const override;

  // ---- the driving thread ----
  template <class Over>
  Result<void> drive(const Over& over, const OperationPtr& until);
  enum class Start { kAllowed, kRefused };
  bool advance_all(Start start);
  // The checks of a wait: late ranks, time limits, and, if nothing moves, ranks that have left. The last messages of such a rank may be on
  // the way.
  void check_wait(const OperationPtr& until, bool idle);
  void check_limit(const Operation& operation, TimePoint now);
  std::string describe(int rank) const;

  const CommunicatorRequest request_;
  const std::shared_ptr<Clock> clock_;
  const std::uint64_t generation_;
  mutable PendingOperations pending_;
  std::vector<OperationPtr> heads_;
  const Operation* late_ = nullptr;  // the last operation to be late
  TimePoint warn_at_{};              // time of the next warning about late_
  std::atomic<bool> left_{false};
  mutable std::atomic<int> wanted_{0};  // threads that wait in in_turn()
  mutable MessageGroup group_;          // last: its end ends the transfers of pending operations
};

}  // namespace shoal::runtime
