// Shared memory without names: memfds, passed as descriptors, freed with the last process that holds them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

enum class Access {
  kRead,
  kReadWrite,
  kCopyOnWrite,  // writes are visible in this mapping only
};

// A mapped range, unmapped by the destructor. Empty ranges map nothing.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

  // Makes all pages of a writable mapping at once (needs Linux 5.14; otherwise no effect). Contents stay. Large memory gets huge pages,
  // which cause fewer TLB misses in every process that maps it (needs Linux 6.1, whose MADV_COLLAPSE ignores the system's setting).
  void populate() const { populate(0, size_); }
  // As above, a range. A huge page belongs to the range that its first byte is in.
  void populate(std::size_t offset, std::size_t bytes) const;
  // As above, part `index` of `count` equal ones: each of several processes makes one.
  void populate_part(std::size_t index, std::size_t count) const;

  // Forbids every access, so that each one faults; allow() permits them again. For the lease guard (fsdp).
  void forbid() const;
  void allow(Access access) const;

 private:
  friend Result<Mapping> map(const Fd& memory, std::size_t bytes, Access access);
  friend Result<Mapping> private_memory(std::size_t bytes, bool touched);
  void make_huge_pages(std::size_t offset, std::size_t bytes) const;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Makes a zeroed memory of a fixed size: seals forbid shrinking and growing, so no holder can make a reader fault.
Result<Fd> make_memory(const std::string& name, std::size_t bytes);
// Returns the size of a memory from another process. Returns InvalidArgument unless it is sealed as by make_memory, or is a file of this
// user without a name that is open for reading only.
Result<std::size_t> memory_bytes(const Fd& memory);
// For descriptors that memory_bytes accepts: true for a sealed memory, false for a file.
bool is_memory(const Fd& memory);
Result<Mapping> map(const Fd& memory, std::size_t bytes, Access access);
Result<Fd> duplicate(const Fd& fd);
// Writes into memory whose pages do not exist yet, two to four times as fast as through a mapping (measured). The kernel copies into new
// pages without zeroing them and without faults. Returns ResourceExhausted if there is no room.
Result<void> write_at(const Fd& memory, std::size_t offset, std::span<const std::byte> bytes);

// Maps zeroed private memory. With `touched` all pages exist at once, otherwise each after its first access. Asks for huge pages,
// which cause fewer faults and TLB misses.
Result<Mapping> private_memory(std::size_t bytes, bool touched = false);

}  // namespace shoal::runtime
