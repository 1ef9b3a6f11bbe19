#include "scheduler/head/packages.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/core/fd.h"

namespace shoal::scheduler {

using actors::HasPackage;
using actors::PackagePart;
namespace fs = std::filesystem;

namespace {

Result<void> check(const PackagePart& p) {
  const bool hash = p.name.size() == 64 && p.name.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hash) return fail(invalid_argument("a package's name must be the SHA-256 of its content"));
  return {};
}

Error lacks(const std::string& name) {
  return not_found("the head has no package " + name.substr(0, 12))
      .with_hint("start the job or actor again: a head keeps packages in use, and a new leader has none of them");
}

}  // namespace

Packages::Packages(runtime::Clock& clock, Options options, Used used)
    : clock_(clock), options_(std::move(options)), used_(std::move(used)) {}

// At the first use: takes over the complete packages of an earlier head, and removes incomplete ones.
Result<void> Packages::open() {
  if (options_.folder.empty()) return fail(unimplemented("this head stores no packages"));
  if (mkdir(options_.folder.c_str(), 0700) != 0 && errno != EEXIST) return fail(from_errno(errno, "mkdir " + options_.folder));
  if (std::exchange(opened_, true)) return {};
  std::error_code error;
  for (fs::directory_iterator entry(options_.folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().filename();
    std::error_code gone;
    const auto bytes = fs::file_size(entry->path(), gone);
    if (!gone && file.size() == 68 && file.ends_with(".zip")) {
      kept_[file.substr(0, 64)] = {bytes, clock_.now()};
    } else {
      fs::remove(entry->path(), gone);
    }
  }
  return {};
}

void Packages::drop_stalled() {
  std::erase_if(coming_, [&](const auto& c) {
    if (clock_.now() - c.second.last < options_.stalled) return false;
    unlink(path(c.first.first, c.first.second).c_str());
    return true;
  });
}

Result<void> Packages::make_room(std::uint64_t from, std::uint64_t bytes) {
  const auto arriving = std::ranges::count_if(coming_, [&](const auto& c) { return c.first.first == from; });
  if (static_cast<std::size_t>(arriving) >= options_.max_arriving) {
    return fail(resource_exhausted(fmt::format("one connection sends at most {} packages at a time", options_.max_arriving))
                    .with_hint("send the rest of the packages that it has begun"));
  }
  const auto sum = [&] {
    std::uint64_t out = bytes;
    for (const auto& [name, k] : kept_) out += k.bytes;
    for (const auto& [key, c] : coming_) out += c.total;
    return out;
  };
  std::uint64_t have = sum();
  const auto enough = [&] { return have <= options_.max_bytes && kept_.size() + coming_.size() < options_.max_packages; };
  if (enough()) return {};
  drop_stalled();
  have = sum();
  std::vector<std::pair<runtime::TimePoint, std::string>> idle;
  for (const auto& [name, k] : kept_) {
    if (clock_.now() - k.last >= options_.unused) idle.emplace_back(k.last, name);
  }
  std::sort(idle.begin(), idle.end());
  std::set<std::string> names;
  for (const auto& [last, name] : idle) names.insert(name);
  const auto used = used_(names);
  for (auto it = idle.begin(); it != idle.end() && !enough(); ++it) {
    if (used.contains(it->second)) continue;
    std::error_code ignored;
    fs::remove(path(it->second), ignored);
    have -= kept_.extract(it->second).mapped().bytes;
  }
  if (enough()) return {};
  return fail(
      resource_exhausted(fmt::format("the head stores at most {} packages of {} MiB together, and all of them arrive, or are or were "
                                     "lately in use",
                                     options_.max_packages, options_.max_bytes >> 20))
          .with_hint("end jobs that no longer need theirs, or list files that processes do not need in excludes"));
}

Result<HasPackage> Packages::put(std::uint64_t from, const PackagePart& part) {
  SHOAL_OK(check(part));
  SHOAL_OK(open());
  if (const auto it = kept_.find(part.name); it != kept_.end()) {
    it->second.last = clock_.now();
    return HasPackage{true};
  }
  if (part.data.empty()) return HasPackage{false};
  if (part.total > PackagePart::kMaxTotal || part.data.size() > PackagePart::kMaxBytes || part.offset > part.total ||
      part.data.size() > part.total - part.offset) {
    return fail(invalid_argument(fmt::format("a package has {} MiB at most, in parts of {} KiB at most", PackagePart::kMaxTotal >> 20,
                                             PackagePart::kMaxBytes >> 10)));
  }
  const std::pair key{from, part.name};
  if (part.offset == 0) {
    drop(from, part.name);
    SHOAL_OK(make_room(from, part.total));
  } else if (const auto it = coming_.find(key); it == coming_.end() || it->second.bytes != part.offset || it->second.total != part.total) {
    return fail(invalid_argument("the parts of a package must be sent in order").with_reason("FromTheFirst"));
  }
  Coming& coming = coming_[key];
  coming.total = part.total;
  coming.last = clock_.now();
  if (const auto written = write(from, part, coming); !written) {
    drop(from, part.name);
    return fail(written.error());
  }
  if (coming.bytes < part.total) return HasPackage{false};
  SHOAL_OK(keep(from, part, std::move(coming_.extract(key).mapped())));
  return HasPackage{true};
}

Result<void> Packages::write(std::uint64_t from, const PackagePart& part, Coming& coming) {
  const Fd fd(::open(path(from, part.name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (part.offset == 0 ? O_TRUNC : 0), 0600));
  if (!fd) return fail(from_errno(errno, "a package cannot be written to " + options_.folder));
  for (std::size_t moved = 0; moved < part.data.size();) {
    const ssize_t n = pwrite(fd.get(), part.data.data() + moved, part.data.size() - moved, static_cast<off_t>(part.offset + moved));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(from_errno(n < 0 ? errno : ENOSPC, "a package cannot be written to " + options_.folder));
    moved += static_cast<std::size_t>(n);
  }
  coming.bytes += part.data.size();
  coming.digest.add(std::as_bytes(std::span(part.data)));
  return {};
}

Result<void> Packages::keep(std::uint64_t from, const PackagePart& last, Coming coming) {
  const std::string file = path(from, last.name);
  if (coming.digest.hex() != last.name) {
    unlink(file.c_str());
    return fail(invalid_argument("package " + last.name.substr(0, 12) + " has other content than its name states"));
  }
  if (rename(file.c_str(), path(last.name).c_str()) != 0) {
    const Error why = from_errno(errno, "rename " + file);
    unlink(file.c_str());
    return fail(why);
  }
  kept_[last.name] = {last.total, clock_.now()};
  return {};
}

void Packages::drop(std::uint64_t from, const std::string& name) {
  if (coming_.erase({from, name}) > 0) unlink(path(from, name).c_str());
}

Result<PackagePart> Packages::get(const PackagePart& request) {
  SHOAL_OK(check(request));
  SHOAL_OK(open());
  const auto it = kept_.find(request.name);
  if (it == kept_.end()) return fail(lacks(request.name));
  it->second.last = clock_.now();
  if (request.offset > it->second.bytes) return fail(invalid_argument("a part was requested beyond the package's end"));
  PackagePart out{request.name, it->second.bytes, request.offset,
                  std::string(std::min<std::uint64_t>(PackagePart::kMaxBytes, it->second.bytes - request.offset), '\0')};
  const Fd fd(::open(path(request.name).c_str(), O_RDONLY | O_CLOEXEC));
  for (std::size_t moved = 0; moved < out.data.size();) {
    const ssize_t n =
        fd ? pread(fd.get(), out.data.data() + moved, out.data.size() - moved, static_cast<off_t>(request.offset + moved)) : -1;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {  // the file was removed or cannot be read
      kept_.erase(it);
      return fail(lacks(request.name));
    }
    moved += static_cast<std::size_t>(n);
  }
  return out;
}

void Packages::closed(std::uint64_t from) {
  std::erase_if(coming_, [&](const auto& c) {
    if (c.first.first != from) return false;
    unlink(path(from, c.first.second).c_str());
    return true;
  });
}

}  // namespace shoal::scheduler
