#include "runtime/shm/readers.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <string>

namespace shoal::runtime {

namespace {

struct flock lock_of(short type) {
  struct flock out {};
  out.l_type = type;
  out.l_whence = SEEK_SET;
  out.l_len = 1;
  return out;
}

}  // namespace

Result<Fd> keeper_of(const Fd& memory) {
  Fd out(open(("/proc/self/fd/" + std::to_string(memory.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!out) return fail(from_errno(errno, "shared memory cannot be opened for reading"));
  if (flock(out.get(), LOCK_SH | LOCK_NB) != 0) return fail(from_errno(errno, "shared memory cannot be locked"));
  return out;
}

// Adds an open file description lock, which also belongs to the open file, not to the process. On a kernel without such locks (a sandbox
// that imitates Linux), every holder counts as a reader.
Result<Fd> reader_of(const Fd& memory) {
  SHOAL_TRY(Fd out, keeper_of(memory));
  struct flock lock = lock_of(F_RDLCK);
  if (fcntl(out.get(), F_OFD_SETLK, &lock) != 0 && errno != EINVAL) return fail(from_errno(errno, "shared memory cannot be locked"));
  return out;
}

bool has_holders(const Fd& memory) {
  if (flock(memory.get(), LOCK_EX | LOCK_NB) != 0) return true;
  flock(memory.get(), LOCK_UN);
  return false;
}

bool has_readers(const Fd& memory) {
  struct flock lock = lock_of(F_WRLCK);
  return fcntl(memory.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace shoal::runtime
