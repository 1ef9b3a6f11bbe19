#include "scheduler/cli/run/forwarding/copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "runtime/telemetry/live_page.h"
#include "scheduler/cli/run/forwarding/names.h"
#include "scheduler/runs/files.h"

namespace shoal::scheduler::cli {

using actors::RunFilePart;

namespace {

Error refused(std::string why) {
  return invalid_argument("another host's part of the run: " + std::move(why))
      .with_reason("RunFileRefused")
      .with_hint("compare the versions of Shoal on the hosts, and give each run a folder of its own (--run-folder)");
}

// The errno of the failure; 0: all is written.
int write_at(const Fd& file, std::uint64_t offset, std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto n = pwrite(file.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? ENOSPC : errno;
    at += static_cast<std::size_t>(n);
  }
  return 0;
}

Result<Fd> open_to_write(const Fd& folder, const std::string& name, int more) {
  Fd file(openat(folder.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | more, 0600));
  if (!file) return fail(from_errno(errno, name));
  struct stat seen {};
  if (fstat(file.get(), &seen) != 0 || !S_ISREG(seen.st_mode)) return fail(refused(name + " is no regular file here"));
  return file;
}

Result<void> write_facts(const Fd& folder, std::string_view bytes) {
  const std::string half = std::string(kFactsFile) + ".new";
  SHOAL_TRY(const auto file, open_to_write(folder, half, O_CREAT | O_TRUNC));
  if (const int why = write_at(file, 0, bytes); why != 0) return fail(from_errno(why, kFactsFile));
  if (renameat(folder.get(), half.c_str(), folder.get(), kFactsFile) != 0) return fail(from_errno(errno, kFactsFile));
  return {};
}

// A page that is there already stays as it is: the time of its change shows readers when the process beat last.
Result<void> write_live(const Fd& folder, std::string_view bytes) {
  if (const auto present = runs::read_file(folder, kLiveFile, bytes.size()); present && *present == bytes) return {};
  SHOAL_TRY(const auto file, open_to_write(folder, kLiveFile, O_CREAT));
  if (const int why = write_at(file, 0, bytes); why != 0) return fail(from_errno(why, kLiveFile));
  return {};
}

Result<void> write_rows(const Fd& folder, const RunFilePart& part, std::string_view bytes) {
  const auto opened = open_to_write(folder, part.file, part.offset == 0 ? O_CREAT : 0);
  if (!opened && opened.error().code() == Code::kNotFound) return {};  // a user has removed the file, so the part is dropped
  if (!opened) return fail(opened.error());
  const Fd& file = *opened;
  struct stat seen {};
  if (fstat(file.get(), &seen) != 0 || static_cast<std::uint64_t>(seen.st_size) < part.offset) return {};
  const auto end = part.offset + part.size;
  const int why = write_at(file, part.offset, bytes);
  // After a failed write the file is cut back to its old end: a part of a line would spoil the next one.
  const auto size = why != 0 ? part.offset : end;
  if ((why != 0 || static_cast<std::uint64_t>(seen.st_size) > end) && ftruncate(file.get(), static_cast<off_t>(size)) != 0)
    return fail(from_errno(errno, part.file));
  if (why != 0) return fail(from_errno(why, part.file));
  return {};
}

Result<void> check(const RunFilePart& part) {
  if (!is_process_name(part.process)) return fail(refused("no process has the name " + part.process));
  const auto kind = kind_of_file(part.file);
  if (!kind) return fail(refused("no process writes a file " + part.file));
  const bool rows = *kind == FileKind::kRows;
  if (part.removed ? !rows || part.size != 0 : !rows && part.offset != 0) return fail(refused(part.file + " is replaced as a whole"));
  const auto most = rows ? kMostFileBytes : *kind == FileKind::kLive ? sizeof(runtime::LivePage) : kMostFactsBytes;
  if (part.size > most || part.offset > most - part.size) return fail(refused(part.file + " is too large"));
  return {};
}

}  // namespace

Result<void> RunFilesCopy::write(const actors::RunFiles& files, std::string_view bytes) {
  if (files.parts.size() > kMostParts) return fail(refused("a message has too many parts"));
  std::uint64_t size = 0;
  for (const auto& part : files.parts) {
    SHOAL_OK(check(part));
    size += part.size;
  }
  if (size != bytes.size()) return fail(refused("a message has more or fewer bytes than its parts"));
  for (const auto& part : files.parts) {
    SHOAL_OK(write_part(files.sender, part, bytes.substr(0, part.size)));
    bytes.remove_prefix(part.size);
  }
  return {};
}

Result<void> RunFilesCopy::write_part(std::uint64_t sender, const RunFilePart& part, std::string_view bytes) {
  SHOAL_TRY(const auto folder, folder_of(sender, part.process));
  if (!folder) return {};
  auto& sizes = processes_[part.process].sizes;
  if (part.removed) {
    unlinkat(folder.get(), part.file.c_str(), 0);
    sizes.erase(part.file);
    return {};
  }
  const auto known = sizes.find(part.file);
  const auto others = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0},
                                      [&](std::uint64_t sum, const auto& f) { return f.first == part.file ? sum : sum + f.second; });
  if ((known == sizes.end() && sizes.size() >= kMostFiles + 2) || others + part.offset + part.size > kMostProcessBytes)
    return fail(refused(part.process + " has more files or bytes than a process writes"));
  SHOAL_OK(part.file == kFactsFile  ? write_facts(folder, bytes)
           : part.file == kLiveFile ? write_live(folder, bytes)
                                    : write_rows(folder, part, bytes));
  sizes[part.file] = part.offset + part.size;
  return {};
}

// The process's folder, which its first part makes. Empty if a user has removed it. Also empty if the process's rows come another way: it
// writes into this folder itself, or another host sends them.
Result<Fd> RunFilesCopy::folder_of(std::uint64_t sender, const std::string& name) {
  const std::string all_path = folder_ + "/processes";
  const Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail(from_errno(errno, folder_));
  const auto known = processes_.find(name);
  if (known == processes_.end()) {
    if (processes_.size() >= kMostProcesses) return fail(refused("the run has too many processes"));
    if (mkdirat(folder.get(), "processes", 0700) != 0 && errno != EEXIST) return fail(from_errno(errno, all_path));
  } else if (known->second.sender != sender) {
    return Fd();
  }
  const Fd all = runs::open_folder(folder, "processes");
  if (!all) return fail(from_errno(errno, all_path));
  if (known == processes_.end()) {
    const bool is_new = mkdirat(all.get(), name.c_str(), 0700) == 0;
    if (!is_new && errno != EEXIST) return fail(from_errno(errno, all_path + "/" + name));
    if (is_new) processes_[name].sender = sender;
    if (!processes_[name].sender) return Fd();
  }
  return runs::open_folder(all, name.c_str());
}

}  // namespace shoal::scheduler::cli
