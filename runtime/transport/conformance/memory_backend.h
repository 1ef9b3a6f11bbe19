// A CollectiveBackend in the memory of one process, whose ranks are its threads. It is the smallest possible transport: for tests, and as
// an example for other backends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/collective_backend.h"

namespace shoal::runtime {

// The place where the threads that are the ranks of a group meet. It outlives their backends.
class MemoryHub {
 public:
  explicit MemoryHub(int world_size) : ended_(static_cast<std::size_t>(world_size)), next_(make_round()) {}
  std::shared_ptr<CollectiveBackend> join(int rank);
  // Ends a rank, as its process's death would: calls that still need the rank fail.
  void kill(int rank, const std::string& cause);

 private:
  class Backend;
  class Receive;
  using Lock = std::unique_lock<std::mutex>;

  // The part of one rank in a collective: the bytes that it sends to each rank, and the places for the bytes that it receives.
  struct Part {
    std::string what, label;  // `what`: the collective, the same on every rank
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
  };
  // One collective. The last rank to come moves the bytes of all, so that no rank touches another one's memory after the result is there.
  struct Round {
    std::vector<std::optional<Part>> parts;  // by rank; nullopt: the rank has not come yet
    std::size_t num_parts = 0;
    std::optional<Result<void>> result;
  };
  // Messages from one rank to another, by number, until they are received. The n-th receive gets the message with number n.
  struct Channel {
    struct Message {
      std::uint32_t tag;
      std::vector<std::byte> bytes;
    };
    std::map<std::uint64_t, Message> messages;
    std::uint64_t num_sent = 0, num_receives = 0;
  };

  std::shared_ptr<Round> make_round() const;
  Result<void> meet(int rank, Part part, const Call& call);
  static Result<void> move(const Round& round);
  // Waits until `over` holds. Fails the group at the time limit, or if a rank has ended for which needs(rank) holds.
  template <class Over, class Needs>
  Result<void> wait(Lock& lock, const Over& over, const Needs& needs, const Call& call);
  void end(int rank, const Error& how);

  std::mutex mutex_;
  std::condition_variable changed_;

  // Guarded by mutex_.
  std::vector<std::optional<Error>> ended_;  // by rank: the error of its end
  std::optional<Error> failure_;             // the first failure of the group
  std::shared_ptr<Round> next_;              // the collective that the ranks enter at present
  std::map<std::pair<int, int>, Channel> channels_;
};

}  // namespace shoal::runtime
