// The memory of one large value in this process: mapped while in use, and moved to a file when memory is short.
//
// The file has no name (runtime/shm/spill_file.h). Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/protocol/cluster/object_key.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/shm/memory.h"

namespace shoal::actors {

class SharedMemory {
 public:
  static Result<std::shared_ptr<SharedMemory>> from_fd(Fd memory, std::size_t bytes);
  SharedMemory(Fd memory, std::size_t bytes) : bytes_(bytes), memory_(std::move(memory)) {}
  ~SharedMemory();

  std::size_t bytes() const { return bytes_; }
  // Maps the memory. While the caller keeps the mapping, the memory is not moved to a file. Writes to the mapping are private to this
  // process.
  Result<std::shared_ptr<const runtime::Mapping>> mapping();
  // From now on, the memory is never moved to a file.
  void keep_mapped() { keeps_mapped_ = true; }
  // Maps the memory once more: writes are visible in this mapping only. It, too, keeps the memory from being moved.
  Result<std::shared_ptr<const runtime::Mapping>> copy();
  // A duplicate of the descriptor, to send to another process.
  Result<Fd> descriptor() const;

  // Moves the memory into a file in `folder` and returns true, unless a mapping is in use or it is moved already. Slow, so never on a loop.
  // Returns Cancelled once `stop` returns true.
  Result<bool> spill(const std::string& folder, const std::function<bool()>& stop = {});
  bool spilled() const;
  // Position in this process's order of uses; a lower one is longer ago.
  std::uint64_t last_used() const { return last_used_; }
  // `reported` is called, in any thread, when the memory is destroyed.
  void on_gone(std::function<void()> reported);
  // Notes that the node keeps this memory as an object; a spill then sends the file to the node as well. `object.home` is 0 for this node.
  void published_as(const ObjectKey& object);
  std::optional<ObjectKey> published() const;
  // The value's id in answers to inspections, set by the first one. Published memory has its object's key instead.
  std::atomic<std::uint64_t> name = 0;
  std::atomic<bool> referred = false;  // the value was made here or answers a call, so that a reference to it may exist here

 private:
  const std::size_t bytes_;
  mutable std::mutex mutex_;
  Fd memory_;
  std::shared_ptr<const runtime::Mapping> mapping_;
  bool spilled_ = false;
  std::optional<ObjectKey> published_;
  std::function<void()> gone_;
  std::atomic<std::uint64_t> last_used_ = 0;
  std::atomic<bool> keeps_mapped_ = false;
};

}  // namespace shoal::actors
