// Who has a memory open is the kernel's to say.
//
// What is given away of a memory is another open file of it, for reading, with shared locks on it: its duplicates, its mappings and copies
// of it in messages keep that open file, and it ends with the last of them, however their processes ended. A reader's carries two locks, a
// keeper's one: a keeper wants the bytes to stay what they are, but looks at none of them.
#pragma once

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

Result<Fd> reader_of(const Fd& memory);
Result<Fd> keeper_of(const Fd& memory);

// Asked through a file that is neither, the one that can be written: whether there are any. If not, none can come.
bool has_holders(const Fd& memory);
// Asked through a keeper's, or any other that is no reader's.
bool has_readers(const Fd& memory);

}  // namespace shoal::runtime
