// A rank's view of its group over a MessageLayer: the ranks that have left or are lost, and the group's failure.
//
// Ranks exchange control messages: a failure with its cause, a rank's leave, and the ranks of the next generation. Apart from fail() and
// failure(), everything belongs to the driving thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/transport/communicator_request.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

class MessageGroup {
 public:
  using Channel = MessageLayer::Channel;
  using Transfer = MessageLayer::Transfer;

  // `ranks`: the layer's number of each rank of this group.
  MessageGroup(std::shared_ptr<MessageLayer> layer, std::vector<int> ranks, int rank, const Clock& clock,
               const CommunicatorRequest& request);
  ~MessageGroup();
  MessageGroup(const MessageGroup&) = delete;
  MessageGroup& operator=(const MessageGroup&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(ranks_.size()); }
  const std::shared_ptr<MessageLayer>& layer() const { return layer_; }
  std::size_t chunk_bytes() const { return chunk_bytes_; }

  // ---- any thread ----
  // Records the group's failure; later causes are ignored. The driving thread reports it to the other ranks.
  void fail(const Error& cause);
  std::optional<Error> failure() const;
  // The group's failure, as the error of an operation.
  Error failure_in(const std::string& operation) const;

  // True once close() has ended all transfers.
  bool closed() const { return closed_; }

  // ---- the driving thread ----
  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer);
  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer);
  // Advances transfers and handles control messages. Returns true after progress.
  bool progress();
  // True when the group has failed. A lost rank that has not left fails it.
  bool has_failed();
  bool has_left(int rank) const { return peers_[static_cast<std::size_t>(rank)].left; }
  // The cause of the end of a rank's process, if its node has reported it.
  std::optional<std::string> death(int rank) const { return death_ ? death_(ranks_[static_cast<std::size_t>(rank)]) : std::nullopt; }
  std::vector<int> lost() const;
  // Reports the failure to the other ranks, if this rank found it, and ends all transfers. The layer then is in the next epoch.
  void close();
  void leave();
  // After close(): the ranks of the next generation, in order. The lowest rank that is not lost decides, for all ranks.
  Result<std::vector<int>> agree_on_survivors(Duration limit);
  // The layer's numbers of some of this group's ranks.
  std::vector<int> layer_ranks(const std::vector<int>& ranks) const;

 private:
  enum class Control : std::uint8_t { kFailed, kLeft, kSurvivors };
  struct Peer {
    std::vector<std::byte> control;
    Transfer receiving;
    bool left = false;
    bool closing = false;  // has found the group's failure, and closes its connections
    std::optional<TimePoint> lost_since;
  };

  // A control message to every rank that can be reached. Its memory stays until the transfers have ended.
  struct Report {
    std::vector<std::byte> message;
    std::vector<Transfer> sends;
  };

  void receive_control(int from);
  void handle_control(int from, std::span<const std::byte> message);
  // Sends a control message to every rank that can be reached, and waits until it is sent, at most `limit`. Returns true if it is.
  bool send_to_all(Control kind, std::span<const std::byte> body, Duration limit);
  bool reachable(int rank) const;
  Error cause_of_loss(int rank, const Error& broken) const;

  const std::shared_ptr<MessageLayer> layer_;
  const std::vector<int> ranks_;
  const int rank_;
  const Clock& clock_;
  const std::function<std::optional<std::string>(int rank)> death_;  // by the layer's number of a rank
  const std::size_t chunk_bytes_, control_bytes_;                    // control_bytes_: the limit of a control message
  std::vector<Peer> peers_;
  std::vector<int> lost_;  // ranks that were lost when the group failed
  std::atomic<bool> closed_{false};
  bool superseded_ = false;  // true: the layer belongs to the next generation, so this group leaves it alone
  std::optional<std::vector<int>> survivors_;
  std::deque<Report> reports_;

  mutable std::mutex mutex_;
  std::optional<Error> failure_;
};

}  // namespace shoal::runtime
