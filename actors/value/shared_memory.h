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

#include "actors/cluster/object_key.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/shm/memory.h"

namespace shoal::actors {

class SharedMemory {
 public:
  static Result<std::shared_ptr<SharedMemory>> of(Fd memory, std::size_t bytes);
  SharedMemory(Fd memory, std::size_t bytes) : bytes_(bytes), memory_(std::move(memory)) {}
  ~SharedMemory();

  std::size_t bytes() const { return bytes_; }
  // The memory is not moved while the caller keeps the mapping. Writes to it are private to this process.
  Result<std::shared_ptr<const runtime::Mapping>> mapping();
  // The memory is never moved from now on.
  void stay() { stays_ = true; }
  // Another mapping, whose writes only its owner sees. The memory is not moved while it exists, either.
  Result<std::shared_ptr<const runtime::Mapping>> copy();
  // A duplicate to send to another process.
  Result<Fd> descriptor() const;

  // Moves the memory into a file in `folder` and returns true, unless a mapping is in use or it is moved already. Slow, so never on a loop.
  // Cancelled when `stop` returns true.
  Result<bool> spill(const std::string& folder, const std::function<bool()>& stop = {});
  bool spilled() const;
  // Position in this process's order of uses; a lower one is longer ago.
  std::uint64_t last_used() const { return last_used_; }
  // `told` is called in any thread when the memory is destroyed.
  void on_gone(std::function<void()> reported);
  // The object that its node keeps of this memory; a spill sends that node the file as well. `object.home` is 0 for this node.
  void published_as(const ObjectKey& object);
  std::optional<ObjectKey> published() const;
  // Identifier in inspection answers, set at the first one; published memory uses its object's key.
  std::atomic<std::uint64_t> name = 0;
  std::atomic<bool> referred = false;  // made here or the answer of a call, not only read

 private:
  const std::size_t bytes_;
  mutable std::mutex mutex_;
  Fd memory_;
  std::shared_ptr<const runtime::Mapping> mapping_;
  bool spilled_ = false;
  std::optional<ObjectKey> published_;
  std::function<void()> gone_;
  std::atomic<std::uint64_t> last_used_ = 0;
  std::atomic<bool> stays_ = false;
};

}  // namespace shoal::actors
