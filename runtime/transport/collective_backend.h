// A blocking transport of bytes among the ranks of a group, such as a gloo process group. A BackendCommunicator makes collectives of it.
#pragma once

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// One call at a time, apart from pending sends and receives. Counts are bytes. Every rank makes the same calls in the same order. A backend
// returns InvalidArgument/Diverged where they differ, and Unavailable/ActorDied where a rank is gone.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                                  const Call& call) = 0;
  virtual Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                                  Communicator::Counts receives, const Call& call) = 0;
  virtual Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) = 0;
  virtual Result<void> barrier(const Call& call) = 0;
  // Returns before the other rank receives.
  virtual WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) = 0;
  virtual WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) = 0;
  // Called after a failure on this rank, to report it to the other ranks if possible.
  virtual void abort(const Error& cause) = 0;
  virtual void leave() = 0;
};

}  // namespace shoal::runtime
