// The messages from one rank to another, in order, on an NCCL communicator of these two ranks that is made with the first message.
//
// NCCL runs the operations of a communicator one after the other. With a communicator per direction, a send never waits for another
// message of its rank. Otherwise ranks that all send to their neighbour would wait for each other. The sender describes each message over
// the group's control communicator.
//
// The first message waits until both ranks have called, without holding up its program, as another rank may call later. So the thread that
// watches the group issues it, out of the program's order. Then the lane is open: the threads that submit messages issue them at once, and
// the watching thread compares their descriptions afterwards.
#pragma once

#include <deque>
#include <memory>

#include "runtime/transport/nccl/nccl_issue_order.h"
#include "runtime/transport/nccl/nccl_operation.h"

namespace shoal::runtime {

class NcclMessageLane {
 public:
  using Way = NcclMessage::Way;

  NcclMessageLane(const NcclApi& api, std::shared_ptr<const Device> device, std::shared_ptr<Communicator> control, NcclIssueOrder& order,
                  Way way, int other)
      : api_(api), device_(std::move(device)), control_(std::move(control)), order_(order), way_(way), other_(other) {}

  // True: threads that submit messages issue them. Guarded by the driver's mutex.
  bool open = false;

  // ---- the watching thread ----

  void add(std::shared_ptr<NcclMessage> message) { messages_.push_back(std::move(message)); }
  // The message that advances; nullptr if there is none.
  const std::shared_ptr<NcclMessage>& head() const;
  Way way() const { return way_; }
  int other() const { return other_; }
  NcclChannel* channel() { return channel_ ? &*channel_ : nullptr; }
  // True once the head's description has been sent or received, so that no call on the control communicator waits for the other rank.
  bool described() const { return step_ == Step::kConnect || step_ == Step::kMove; }

  // Advances the head. Returns true after progress.
  Result<bool> advance(Duration timeout);
  // Removes the head, once it has passed or failed.
  std::shared_ptr<NcclMessage> take();
  // True once the lane can be opened: it is connected, and all its messages are on the stream.
  bool can_open() const;
  // Waits until the description uses its memory no more, after the control communicator has failed, and gives the device's turn back.
  void settle();

 private:
  struct Description {
    NcclUniqueId id{};  // names the communicator; with the first message only
    std::uint64_t bytes = 0;
    std::uint32_t tag = 0;
    std::uint8_t dtype = 0, has_id = 0;
  };
  enum class Step { kIdle, kDescribe, kConnect, kMove };

  Result<void> describe(Duration timeout);
  Result<void> check_description() const;
  Result<void> connect();
  Result<bool> advance_head();

  const NcclApi& api_;
  const std::shared_ptr<const Device> device_;
  const std::shared_ptr<Communicator> control_;
  NcclIssueOrder& order_;
  const Way way_;
  const int other_;
  std::deque<std::shared_ptr<NcclMessage>> messages_;
  std::optional<NcclChannel> channel_;
  Step step_ = Step::kIdle;
  Description description_;
  WorkPtr describing_;
  std::optional<NcclIssueOrder::Turn> turn_;  // while NCCL works on what this lane has begun
  bool used_ = false;                         // a message has been on the channel
};

}  // namespace shoal::runtime
