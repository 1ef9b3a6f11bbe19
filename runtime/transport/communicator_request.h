// The description of a group from which make_communicator chooses and makes a Communicator. Every rank describes the same group.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/shm/memory.h"
#include "runtime/transport/collective_backend.h"

namespace shoal::runtime {

// Memory that all ranks of the group share.
struct SharedMemory {
  // Returns initially zeroed memory, shared by all ranks that ask for this name. If `member` is not negative, the memory begins with a
  // MembershipPage, on which the node records the death of that member.
  std::function<Result<std::shared_ptr<Mapping>>(const std::string& name, std::size_t bytes, int member)> open;
  int spins = 300;                       // checks before a wait sleeps; 0 where ranks outnumber cores
  std::size_t chunk_bytes = 256 << 10;   // chunk of a rank's stream, at least 64 per rank
  std::size_t channel_bytes = 64 << 10;  // piece of a message between two ranks
};

// A transport of bytes among all ranks of the group.
struct ByteTransport {
  std::string name;  // for messages: "gloo"
  // Opens it, together with the other ranks. Called only if this transport is chosen.
  std::function<Result<std::shared_ptr<CollectiveBackend>>()> open;
};

struct CommunicatorRequest {
  int rank = 0;
  int world_size = 1;
  std::string name;  // equal on every rank, unique to the group

  // The connections among the ranks, fastest first: make_communicator takes the first one that is present.
  std::optional<SharedMemory> memory;
  std::optional<ByteTransport> bytes;

  // For transports that wait themselves; a CollectiveBackend has its own limits.
  Duration warn_after = std::chrono::seconds(5);  // time before a wait logs the missing rank
  Duration timeout = std::chrono::seconds(600);   // default time limit of an operation
  std::function<bool()> interrupted;              // polled by waits; true ends the wait
  std::function<void(const std::string&)> warn;
};

}  // namespace shoal::runtime
