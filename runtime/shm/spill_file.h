// Files without names that hold what memories held: for memory that is short.
//
// Such a file is gone with the last process that has it open or mapped, whatever becomes of them. Reading it is the kernel's business, as
// its pages come and go like those of any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

// The first of these folders that lies on a disk and can be written to; the first of all if none does. (Where /tmp is memory, /var/tmp is
// not.)
std::string folder_on_disk(std::span<const std::string> folders);

// What stays free of a disk of so many bytes: others write there, too, such as the head what it keeps. 5 %, 5 GiB at most.
std::uint64_t kept_free(std::uint64_t disk_bytes);

// Whether so many bytes may be written there. ResourceExhausted/DiskFull when the disk would be left with less than kept_free,
// InvalidArgument/NoDisk for a folder that lies in memory itself.
Result<void> room_on_disk(std::size_t bytes, const std::string& folder);

// A file in that folder, open for reading, of the memory's size, with the first `bytes` of it. Takes its time: not on a loop. Fails as
// room_on_disk does, as InvalidArgument/NoDisk on a file system that keeps names, and as Cancelled once `stop` (asked before each 64 MiB)
// says so.
Result<Fd> spill_to_file(const Fd& memory, std::size_t bytes, const std::string& folder, const std::function<bool()>& stop = {});

}  // namespace shoal::runtime
