#include "fsdp/runner/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

Error failed(const char* what) {
  const int error = errno;
  const std::string text = fmt::format("{} optimizer state outside memory: {}", what, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? resource_exhausted(text).with_hint("choose a folder with more room") : data_loss(text);
}

}  // namespace

Result<StateFile> StateFile::make(const std::string& folder, std::size_t bytes) {
  Fd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0) {
    return fail(unavailable(fmt::format("a file for optimizer state cannot be created in {}: {}", folder, std::strerror(errno)))
                    .with_hint("name an existing folder that can be written to"));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return fail(failed("making room for"));
  return StateFile(std::move(fd));
}

Result<void> StateFile::read(std::size_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(failed("reading"));
    if (n == 0) return fail(data_loss("the file of offloaded optimizer state is shorter than it was made"));
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

Result<void> StateFile::write(std::size_t offset, std::span<const std::byte> in) const {
  while (!in.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), in.data(), in.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(failed("writing"));
    in = in.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace shoal::fsdp
