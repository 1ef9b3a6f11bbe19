// Counts the holders of a shared memory by file locks, which the kernel releases also when a process dies.
//
// Other processes get a new, read-only open file of the memory with shared locks on it. Its duplicates, mappings and copies in messages
// keep the open file; it closes with the last of them. A reader's file has two locks, a keeper's one. A reader reads the bytes; a keeper,
// such as the node, only needs them to stay unchanged.
#pragma once

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

Result<Fd> reader_of(const Fd& memory);
Result<Fd> keeper_of(const Fd& memory);

// Returns true if `memory` has readers or keepers. `memory` is the writable file, without locks. Once this has returned false, only
// this process can give the memory new ones.
bool has_holders(const Fd& memory);
// Returns true if the memory has readers. `memory` is a keeper's file or the writable one, not a reader's.
bool has_readers(const Fd& memory);

}  // namespace shoal::runtime
