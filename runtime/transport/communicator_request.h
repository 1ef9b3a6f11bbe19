// The description of a group, from which make_communicator chooses a transport and makes a Communicator. Every rank describes the same
// group.
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
#include "runtime/transport/message_layer.h"

struct CUstream_st;  // a stream of the CUDA driver

namespace shoal::runtime {

// A memory that all ranks of the group share, and the sizes of its parts.
struct SharedMemory {
  // Returns a memory that is zeroed at first. All ranks that ask for this name share it. If `member` is not negative, the memory begins
  // with a MembershipPage, on which the node records the death of that member.
  std::function<Result<std::shared_ptr<Mapping>>(const std::string& name, std::size_t bytes, int member)> open;
  // True: a wait polls for a moment before it sleeps, while polling pays (runtime/shm/spin.h). The moment is longer than a wake-up takes:
  // else one rank would fall asleep while another one wakes up, and so on without end.
  bool spins = true;
  // True: there are more ranks than cores, so a poll offers its core to another rank from the start.
  bool shares_cores = false;
  // Bytes of a collective that a rank puts into shared memory at once; at least 64 for each rank.
  std::size_t chunk_bytes = 256 << 10;
  // Bytes of a message between two ranks that are put into shared memory at once.
  std::size_t channel_bytes = 64 << 10;
};

// A transport that moves bytes among all ranks of the group.
struct ByteTransport {
  std::string name;  // shown in errors: "gloo"
  // Opens the transport, at the same time as the other ranks. Called only if this transport is chosen.
  std::function<Result<std::shared_ptr<CollectiveBackend>>()> open;
};

// A network between the ranks, which moves messages without blocking.
struct MessageTransport {
  // Opens the network, together with the other ranks. Called only if this transport is chosen.
  std::function<Result<std::shared_ptr<MessageLayer>>()> open;
  // How a rank's process ended, once its node has reported that. Any thread. May be empty.
  std::function<std::optional<std::string>(int rank)> death;
  std::size_t chunk_bytes = 1 << 20;  // a multiple of 16
};

struct CudaApi;
struct NcclApi;

// Collectives on memory of CUDA devices, by NCCL with one device per rank, or by copies between processes of one host. The ranks' other
// transport carries the agreements of their hosts.
struct NcclTransport {
  int device = 0;         // number of this rank's device in its process
  bool cuda_ipc = false;  // copies take the place of NCCL; several ranks may have one device
  // The stream whose earlier work an operation's buffers wait for, asked at each call (torch's current stream). Empty: the caller has
  // waited for that work itself.
  std::function<CUstream_st*()> current_stream;
  Duration connect_timeout = std::chrono::seconds(300);
  // How long operations that all ranks have begun may still take after a failure, before they are aborted.
  Duration in_flight = std::chrono::milliseconds(50);
  const CudaApi* cuda = nullptr;  // null: loaded when this transport is chosen
  const NcclApi* api = nullptr;   // null: as for `cuda`
  const void* kernels = nullptr;  // for copies: the image of the kernels that reduce; null: this build's
};

struct CommunicatorRequest {
  int rank = 0;
  int world_size = 1;
  std::string name;  // the same on every rank, and of this group alone

  // If this is set, buffers are memory of devices.
  std::optional<NcclTransport> nccl;
  // The ways to connect the ranks, fastest first. make_communicator takes the first one that is set.
  std::optional<SharedMemory> memory;
  std::optional<MessageTransport> messages;
  std::optional<ByteTransport> bytes;

  // Limits of waits in shared memory. A CollectiveBackend has its own limits.
  Duration warn_after = std::chrono::seconds(5);  // how long a wait lasts before it logs the missing rank
  Duration timeout = std::chrono::seconds(600);   // default time limit of an operation
  std::function<bool()> interrupted;              // polled by waits; true ends the wait
  std::function<void(const std::string&)> warn;
};

}  // namespace shoal::runtime
