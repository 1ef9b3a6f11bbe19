// Shared memory without names: memfds, passed by descriptor, gone with the last process that holds them.
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
  kCopyOnWrite,  // what is written is seen by this mapping alone
};

// A mapped range; unmapped when destroyed. Empty ranges map nothing.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

  // Brings in the pages of a writable mapping at once, where the system can (Linux 5.14).
  void populate() const;

  // Forbids every access (kNone) or allows it again; an access in between faults. For the lease guard.
  void forbid() const;
  void allow(Access access) const;

 private:
  friend Result<Mapping> map(const Fd& memory, std::size_t bytes, Access access);
  friend Result<Mapping> private_memory(std::size_t bytes, bool touched);
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Zeroed, of a fixed size: nobody who gets the descriptor can shrink or grow it (so no reader can be made to fault).
Result<Fd> make_memory(const std::string& name, std::size_t bytes);
// The size of a memory that came from elsewhere. InvalidArgument unless it is sealed as make_memory seals it, or a
// file of this user that has no name and was opened for reading.
Result<std::size_t> memory_bytes(const Fd& memory);
// Of one that memory_bytes takes: no file.
bool is_memory(const Fd& memory);
Result<Mapping> map(const Fd& memory, std::size_t bytes, Access access);
Result<Fd> duplicate(const Fd& fd);
// Into memory whose pages are not there yet: the kernel copies into new pages without zeroing them first and without a fault for each
// (measured: two to four times as fast as writing through a mapping). ResourceExhausted when there is no room.
Result<void> write_at(const Fd& memory, std::size_t offset, std::span<const std::byte> bytes);

// Zeroed memory of this process's own; no page is there before it is touched, or all are, with `touched`. Where it is large, the system is
// asked for huge pages: fewer faults, and fewer misses of the address cache for as long as it lives.
Result<Mapping> private_memory(std::size_t bytes, bool touched = false);

}  // namespace shoal::runtime
