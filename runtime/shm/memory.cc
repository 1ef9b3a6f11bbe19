#include "runtime/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <utility>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t kPage = 4096;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1 added it; the headers of Debian 12 lack it
#endif

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// The size of a huge page; 0: this kernel has none.
std::size_t huge_page() {
  static const std::size_t bytes = [] {
    std::size_t found = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> found;
    return found;
  }();
  return bytes;
}

// As mmap, at a multiple of a huge page's size: only there a process sees huge pages as such.
void* map_aligned(std::size_t bytes, int protection, int flags, int fd) {
  const std::size_t huge = huge_page();
  if (huge == 0 || bytes < huge) return mmap(nullptr, bytes, protection, flags, fd, 0);
  const std::size_t taken = round_up(bytes, kPage), reserved = taken + huge;
  void* const place = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(place);
  std::byte* const at = begin + (round_up(reinterpret_cast<std::uintptr_t>(begin), huge) - reinterpret_cast<std::uintptr_t>(begin));
  void* const mapped = mmap(at, bytes, protection, flags | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(begin, reserved);
    errno = error;
    return MAP_FAILED;
  }
  if (at != begin) munmap(begin, static_cast<std::size_t>(at - begin));
  if (const auto rest = static_cast<std::size_t>(begin + reserved - (at + taken)); rest > 0) munmap(at + taken, rest);
  return mapped;
}
}  // namespace

Mapping::Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

void Mapping::populate(std::size_t offset, std::size_t bytes) const {
  if (bytes == 0) return;
  make_huge_pages(offset, bytes);
  const std::size_t begin = offset / kPage * kPage;
  (void)madvise(data_ + begin, offset + bytes - begin, MADV_POPULATE_WRITE);
}

void Mapping::populate_part(std::size_t index, std::size_t count) const {
  const std::size_t each = round_up(size_ / count + 1, kPage), begin = std::min(size_, each * index);
  populate(begin, std::min(size_, begin + each) - begin);
}

void Mapping::make_huge_pages(std::size_t offset, std::size_t bytes) const {
  const std::size_t huge = huge_page();
  if (huge == 0 || reinterpret_cast<std::uintptr_t>(data_) % huge != 0) return;
  const std::size_t begin = round_up(offset, huge), end = std::min(round_up(offset + bytes, huge), size_ / huge * huge);
  if (begin >= end) return;
  for (std::size_t at = begin; at < end; at += huge)
    (void)madvise(data_ + at, kPage, MADV_POPULATE_WRITE);   // else MADV_COLLAPSE finds nothing there
  (void)madvise(data_ + begin, end - begin, MADV_COLLAPSE);  // whatever this leaves stays small pages
}

void Mapping::forbid() const {
  if (data_ != nullptr) SHOAL_CHECK(mprotect(data_, size_, PROT_NONE) == 0, "mprotect failed");
}

void Mapping::allow(Access access) const {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (data_ != nullptr) SHOAL_CHECK(mprotect(data_, size_, protection) == 0, "mprotect failed");
}

Result<Fd> make_memory(const std::string& name, std::size_t bytes) {
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail(from_errno(errno, "memfd_create"));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(from_errno(errno, "cannot create shared memory of " + std::to_string(bytes) + " bytes"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) return fail(from_errno(errno, "F_ADD_SEALS"));
  return fd;
}

bool is_memory(const Fd& memory) {
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & kSizeSeals) == kSizeSeals;
}

Result<std::size_t> memory_bytes(const Fd& memory) {
  struct stat info {};
  if (fstat(memory.get(), &info) != 0) return fail(from_errno(errno, "fstat"));
  const bool sealed = is_memory(memory);
  // A file of this user without a name, which other users cannot open.
  const bool ours = S_ISREG(info.st_mode) && info.st_nlink == 0 && info.st_uid == geteuid();
  const bool read_only = (fcntl(memory.get(), F_GETFL) & O_ACCMODE) == O_RDONLY;
  if (!sealed && !(ours && read_only)) return fail(invalid_argument("the descriptor is not sealed memory"));
  return static_cast<std::size_t>(info.st_size);
}

Result<Mapping> map(const Fd& memory, std::size_t bytes, Access access) {
  Mapping out;
  if (bytes == 0) return out;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // MAP_NORESERVE: private pages that are only read need no memory, so none is reserved for them.
  const int sharing = access == Access::kCopyOnWrite ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  void* at = map_aligned(bytes, protection, sharing, memory.get());
  if (at == MAP_FAILED) return fail(from_errno(errno, "cannot map " + std::to_string(bytes) + " bytes"));
  out.data_ = static_cast<std::byte*>(at);
  out.size_ = bytes;
  return out;
}

Result<Mapping> private_memory(std::size_t bytes, bool touched) {
  Mapping out;
  if (bytes == 0) return out;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return fail(from_errno(errno, "cannot allocate memory of " + std::to_string(bytes) + " bytes"));
  out.data_ = static_cast<std::byte*>(at);
  out.size_ = bytes;
  (void)madvise(at, bytes, MADV_HUGEPAGE);                     // only a hint, so that an error is ignored
  if (touched) (void)madvise(at, bytes, MADV_POPULATE_WRITE);  // needs Linux 5.14; without it, pages come with the first write
  return out;
}

Result<void> write_at(const Fd& memory, std::size_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(memory.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(from_errno(n < 0 ? errno : ENOSPC, "cannot write " + std::to_string(bytes.size()) + " bytes of shared memory"));
    offset += static_cast<std::size_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<Fd> duplicate(const Fd& fd) {
  Fd out(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!out) return fail(from_errno(errno, "dup"));
  return out;
}

}  // namespace shoal::runtime
