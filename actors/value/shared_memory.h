// The memory of one large value in this process: mapped while somebody looks at it, and, when memory is short, in a file instead.
//
// Such a file has no name (runtime/shm/spill_file.h). Any thread.
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
  // It stays where it is as long as somebody has this. What is written there nevertheless is seen in this process only.
  Result<std::shared_ptr<const runtime::Mapping>> mapping();
  // It is never moved from now on.
  void stay() { stays_ = true; }
  // Another mapping, in which what is written is seen by nobody else. It stays where it is, likewise.
  Result<std::shared_ptr<const runtime::Mapping>> copy();
  // To be passed on.
  Result<Fd> descriptor() const;

  // Moves it into a file in that folder, unless somebody looks at it, or it is in one. Whether it did. Takes its time: not on a loop; and
  // ends as Cancelled when `stop` says so.
  Result<bool> spill(const std::string& folder, const std::function<bool()>& stop = {});
  bool spilled() const;
  // Counts up with every look at one of a process: the lower, the longer ago.
  std::uint64_t last_used() const { return last_used_; }
  // Called, in any thread, when one that was spilled is gone.
  void on_gone(std::function<void()> told);
  // The object that the node keeps of it, if it does: it is to be given the file, too. Without a home where that is this node.
  void published_as(const ObjectKey& object);
  std::optional<ObjectKey> published() const;
  // What it is called by those who look at this process, once somebody did; unless it is published.
  std::atomic<std::uint64_t> name = 0;
  std::atomic<bool> referred = false;  // made here, or the answer of a call: not only looked at

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
