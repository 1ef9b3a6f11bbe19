// Moves large objects that no process reads into files, one at a time and beside the loop. An object is checked for readers at its turn,
// and again when its file is written.
//
// Loop thread only.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "scheduler/node/objects/options.h"
#include "scheduler/node/objects/uncounted_bytes.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class Spiller {
 public:
  Spiller(runtime::Clock& clock, storage::MemoryTable& memory, UncountedBytes& uncounted, runtime::Log log, const ObjectOptions& options)
      : clock_(clock), memory_(memory), uncounted_(uncounted), log_(std::move(log)), options_(options) {}
  // Stops the writing of a file.
  ~Spiller() { *over_ = true; }

  // Begins to move objects with `bytes` in all, or more: a process that makes one object usually makes others, and would wait for each.
  void spill(std::uint64_t bytes);
  // The error of the last file; "" if the file was written.
  const std::string& why_no_file() const { return no_file_; }

 private:
  void spill_next();

  runtime::Clock& clock_;
  storage::MemoryTable& memory_;
  UncountedBytes& uncounted_;
  const runtime::Log log_;
  const ObjectOptions& options_;
  std::uint64_t to_spill_ = 0;   // bytes that are still to be moved
  std::size_t checks_left_ = 0;  // number of objects that may still be examined to find these bytes
  bool writing_ = false;
  std::optional<runtime::TimePoint> in_vain_;  // when a search last found too little to move
  std::string no_file_;
  std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace shoal::scheduler
