// A MessageLayer among threads of one process. Large messages wait for their receiver, as on a network, and use the sender's memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

class MemoryNetwork {
 public:
  explicit MemoryNetwork(int world_size) : ranks_(static_cast<std::size_t>(world_size)) {}
  // The network outlives the returned layer.
  std::shared_ptr<MessageLayer> join(int rank);
  // Ends a rank, as the death of its process would.
  void kill(int rank, const std::string& cause);

 private:
  class Layer;
  using Transfer = MessageLayer::Transfer;
  // Sender, receiver, channel and epoch.
  using Lane = std::tuple<int, int, MessageLayer::Channel, int>;
  struct Sent {
    std::vector<std::byte> copy;      // a small message
    std::span<const std::byte> data;  // a large message
    Transfer* transfer = nullptr;     // with `data` only
  };
  struct Posted {
    std::span<std::byte> data;
    Transfer* transfer = nullptr;
  };
  struct Event {
    Transfer* transfer;
    Transfer::State state;
    std::size_t bytes;
  };
  struct Rank {
    std::vector<Event> events;
    bool woken = false;
    std::optional<std::string> death;
    std::condition_variable changed;
  };

  // The caller holds the lock.
  void match(const Lane& lane);
  void add_event(int rank, Event event);
  void drop(int rank, bool sends);

  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<Lane, std::deque<Sent>> sent_;
  std::map<Lane, std::deque<Posted>> posted_;
};

}  // namespace shoal::runtime
