// Files without names that take the contents of shared memories when memory is short.
//
// Such a file vanishes with the last process that has it open or mapped, however that process ends. The kernel pages it in and out like
// any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

// Returns the first writable folder that is on a disk, or else the first folder. (/tmp may be in memory; /var/tmp is on a disk.)
std::string folder_on_disk(std::span<const std::string> folders);

// Returns the bytes of a disk to leave free for other writers, such as the head's state: 5 %, at most 5 GiB.
std::uint64_t kept_free(std::uint64_t disk_bytes);

// Checks whether a folder has room for `bytes` bytes. Returns ResourceExhausted/DiskFull if less than kept_free() would remain,
// InvalidArgument/NoDisk for a folder in memory.
Result<void> room_on_disk(std::size_t bytes, const std::string& folder);

// Returns a read-only file of the memory's size with its first `bytes` bytes. Slow: not for a loop's thread. Returns an error of
// room_on_disk(), or InvalidArgument/NoDisk on a file system on which an open file has to keep its name (NFS). Returns Cancelled once
// `stop`, called before each 64 MiB, returns true.
Result<Fd> spill_to_file(const Fd& memory, std::size_t bytes, const std::string& folder, const std::function<bool()>& stop = {});

}  // namespace shoal::runtime
