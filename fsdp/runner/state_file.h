// An unnamed file for a rank's state between steps; closing its last descriptor frees it. Only a step's host-copy lane reads and writes it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

class StateFile {
 public:
  // Creates a file of `bytes` zeros in this folder. Returns Unavailable if the folder is not writable.
  static Result<StateFile> make(const std::string& folder, std::size_t bytes);

  // Read or write the whole span. They return DataLoss if the disk fails, ResourceExhausted if it is full.
  Result<void> read(std::size_t offset, std::span<std::byte> out) const;
  Result<void> write(std::size_t offset, std::span<const std::byte> in) const;

 private:
  explicit StateFile(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace shoal::fsdp
