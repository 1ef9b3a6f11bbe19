// Reads of another rank's memory by the kernel (process_vm_readv): one copy instead of two through shared memory.
//
// Each rank publishes its pid and the address of a random token, and reads the tokens of all others once. The group reads directly only if
// every rank could. Another pid namespace, or a kernel that forbids it (Yama, seccomp), makes the group use shared memory alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/result.h"
#include "runtime/transport/shm/shm_memory.h"

namespace shoal::runtime {

class DirectReads {
 public:
  DirectReads(ShmMemory memory, int rank);
  DirectReads(const DirectReads&) = delete;  // other ranks read the token at its address

  // Publishes this rank's token. ShmGroup::join calls it before others can see the rank, so that they find the token.
  void join();
  // Reads the others' tokens, once. After all ranks have joined.
  void try_once();
  // True if the group reads directly; nullopt until every rank has tried.
  std::optional<bool> possible() const;
  int first_untried() const;  // a rank that has not tried; -1: all have

  // Copies the bytes at `address` of a rank's process. False: the process or the memory is gone, so the group is about to fail.
  Result<bool> read(int rank, std::uint64_t address, std::span<std::byte> out) const;

 private:
  enum Outcome : std::uint64_t { kUntried, kWorks, kFails };
  bool reads_all_tokens() const;

  const ShmMemory memory_;
  const int rank_;
  const std::uint64_t token_;
};

}  // namespace shoal::runtime
