#include "runtime/shm/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "runtime/shm/memory.h"

namespace shoal::runtime {

namespace {

constexpr const char* kHint = "start with an --object-spilling-directory on a disk with room";

constexpr std::size_t kPiece = 64u << 20;

bool in_memory(const struct statfs& info) {
  const auto type = static_cast<unsigned long>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

Result<Fd> nameless_file(const std::string& folder, std::size_t bytes) {
  Fd out(open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!out && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {  // no O_TMPFILE in this kernel or file system
    std::string name = folder + "/spilled-XXXXXX";
    out = Fd(mkostemp(name.data(), O_CLOEXEC));
    if (out) unlink(name.c_str());
  }
  if (!out) return fail(from_errno(errno, "cannot create a file for an object in " + folder));
  struct stat info {};
  if (fstat(out.get(), &info) != 0) return fail(from_errno(errno, "fstat"));
  if (info.st_nlink != 0) {
    return fail(invalid_argument("the file system of " + folder + " keeps the names of files that are open (is it NFS?)")
                    .with_reason("NoDisk")
                    .with_hint(kHint));
  }
  if (const int error = posix_fallocate(out.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    return fail(from_errno(error, "no room for " + std::to_string(bytes) + " bytes of an object in " + folder));
  }
  return out;
}

}  // namespace

std::string folder_on_disk(std::span<const std::string> folders) {
  const auto on_disk = std::find_if(folders.begin(), folders.end(), [](const std::string& folder) {
    struct statfs info {};
    return statfs(folder.c_str(), &info) == 0 && !in_memory(info) && access(folder.c_str(), W_OK | X_OK) == 0;
  });
  return on_disk != folders.end() ? *on_disk : folders.empty() ? std::string() : folders.front();
}

std::uint64_t kept_free(std::uint64_t disk_bytes) { return std::min(disk_bytes / 20, std::uint64_t{5} << 30); }

Result<void> room_on_disk(std::size_t bytes, const std::string& folder) {
  struct statfs info {};
  if (statfs(folder.c_str(), &info) != 0) return fail(from_errno(errno, "cannot create a file for an object in " + folder));
  if (in_memory(info)) {
    return fail(
        invalid_argument(folder + " lies in memory, so moving objects there would free none").with_reason("NoDisk").with_hint(kHint));
  }
  struct statvfs blocks {};  // statvfs, because statfs lacks f_frsize, the unit of the counts
  if (statvfs(folder.c_str(), &blocks) != 0) return fail(from_errno(errno, "cannot create a file for an object in " + folder));
  const std::uint64_t available = blocks.f_bavail * blocks.f_frsize, reserve = kept_free(blocks.f_blocks * blocks.f_frsize);
  if (available < reserve || available - reserve < bytes) {
    return fail(resource_exhausted("no room for " + std::to_string(bytes) + " bytes of an object in " + folder + ": its disk has " +
                                   std::to_string(available) + " bytes left, of which " + std::to_string(reserve) + " stay free")
                    .with_reason("DiskFull")
                    .with_hint(kHint));
  }
  return {};
}

Result<Fd> spill_to_file(const Fd& memory, std::size_t bytes, const std::string& folder, const std::function<bool()>& stop) {
  SHOAL_OK(room_on_disk(bytes, folder));
  SHOAL_TRY(const std::size_t size, memory_bytes(memory));
  SHOAL_TRY(const Mapping mapping, map(memory, bytes, Access::kRead));
  SHOAL_TRY(const Fd file, nameless_file(folder, bytes));
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    if (stop && stop()) return fail(cancelled("an object was not moved to a file in time"));
    SHOAL_OK(write_at(file, at, mapping.span().subspan(at, std::min(kPiece, bytes - at))));
  }
  if (size > bytes && ftruncate(file.get(), static_cast<off_t>(size)) != 0) return fail(from_errno(errno, "ftruncate"));
  Fd out(open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!out) return fail(from_errno(errno, "a file cannot be opened for reading"));
  return out;
}

}  // namespace shoal::runtime
