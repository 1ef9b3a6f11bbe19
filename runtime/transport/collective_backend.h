// A blocking transport of bytes among the ranks of a group, such as a gloo process group. A BackendCommunicator makes collectives from it.
#pragma once

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// Calls are made one at a time; sends and receives may be pending during other calls. Counts are in bytes. Every rank makes the same calls
// in the same order. A backend returns InvalidArgument/Diverged if they differ, and Unavailable/ActorDied if a rank is gone.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                                  const Call& call) = 0;
  virtual Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                                  Communicator::Counts receives, const Call& call) = 0;
  virtual Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) = 0;
  virtual Result<void> barrier(const Call& call) = 0;
  // Returns before the other rank has received the message.
  virtual WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) = 0;
  virtual WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) = 0;
  // Called when an operation of this rank has failed. The backend reports it to the other ranks if it can.
  virtual void abort(const Error& cause) = 0;
  virtual void leave() = 0;
};

}  // namespace shoal::runtime
