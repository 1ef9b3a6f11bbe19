// A CollectiveBackend in the memory of one process, whose ranks are its threads. It is the smallest transport there can be: a group for
// tests, and an example for other backends.
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

// The place where the ranks of a group meet. It outlives their backends.
class MemoryHub {
 public:
  explicit MemoryHub(int world_size) : ended_(static_cast<std::size_t>(world_size)), next_(make_round()) {}
  std::shared_ptr<CollectiveBackend> join(int rank);
  // Ends a rank, as the death of its process would: calls that still need it fail.
  void kill(int rank, const std::string& cause);

 private:
  class Backend;
  class Receive;
  using Lock = std::unique_lock<std::mutex>;

  // A rank's part of a collective: what it sends to each rank, and where it wants what it receives.
  struct Part {
    std::string what, label;  // `what` is equal on every rank
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
  };
  // One collective. Its last rank moves the bytes of all, so no rank reads another one's memory after the result.
  struct Round {
    std::vector<std::optional<Part>> parts;  // by rank
    std::size_t num_parts = 0;
    std::optional<Result<void>> result;
  };
  // The messages from one rank to another by number, until they are received. The n-th receive gets the n-th message.
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
  // Waits until `over` holds. Fails the group at the time limit, or if a rank has ended for which `needs` holds.
  template <class Over, class Needs>
  Result<void> wait(Lock& lock, const Over& over, const Needs& needs, const Call& call);
  void end(int rank, const Error& how);

  std::mutex mutex_;
  std::condition_variable changed_;

  // Guarded by mutex_.
  std::vector<std::optional<Error>> ended_;  // by rank: how it left or died
  std::optional<Error> failure_;             // the first one
  std::shared_ptr<Round> next_;              // the collective that ranks enter now
  std::map<std::pair<int, int>, Channel> channels_;
};

}  // namespace shoal::runtime
