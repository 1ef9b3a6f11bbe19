// Files without names that hold what memories held: for memory that is short.
//
// Such a file is gone with the last process that has it open or mapped, whatever becomes of them. Reading it is the kernel's business, as
// its pages come and go like those of any file.
#pragma once

#include <cstddef>
#include <cstdint>
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

// A file in that folder, open for reading, with the first `bytes` of that memory. Takes its time: not on a loop. ResourceExhausted/DiskFull
// when the disk would be left with less than kept_free; InvalidArgument/NoDisk for a folder that lies in memory itself, or on a file system
// that keeps names.
Result<Fd> spill_to_file(const Fd& memory, std::size_t bytes, const std::string& folder);

}  // namespace shoal::runtime
