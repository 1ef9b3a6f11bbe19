#include "scheduler/cli/run/forwarding/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <tuple>

#include "runtime/telemetry/live_page.h"
#include "runtime/telemetry/telemetry.h"
#include "scheduler/cli/run/forwarding/names.h"
#include "scheduler/runs/files.h"

namespace shoal::scheduler::cli {

namespace {

constexpr int kSilentRounds = 40;            // a process without a change for so many rounds (10 s) is read in each 40th round only
constexpr std::size_t kMostLine = 1 << 20;   // bytes; a reader skips a longer line
constexpr std::size_t kLeastRest = 4 << 10;  // bytes; with less room left, a message begins no further file

// The whole lines in a file from `offset` on, at most `most` bytes. Leaves out an incomplete last line, which the process takes back if its
// disk is full. Empty if there is no whole line.
std::string whole_lines(const Fd& file, std::uint64_t offset, std::size_t most) {
  std::string out(most, '\0');
  std::size_t size = 0;
  while (size < most) {
    const auto n = pread(file.get(), out.data() + size, most - size, static_cast<off_t>(offset + size));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  out.resize(size);
  const auto end = out.rfind('\n');
  out.resize(end == std::string::npos ? 0 : end + 1);
  return out;
}

}  // namespace

RunFilesSource::RunFilesSource(std::string folder, const std::string& host, std::int64_t since_us)
    : folder_(std::move(folder)), names_begin_(runtime::name_of_host(host) + "-"), since_us_(since_us) {}

void RunFilesSource::add(Batch& batch, const std::string& process, const std::string& file, std::uint64_t offset, std::string_view bytes,
                         std::function<void()> confirmed) {
  batch.parts.push_back({process, file, offset, bytes.size(), false});
  batch.bytes += bytes;
  confirmed_.push_back(std::move(confirmed));
}

RunFilesSource::Batch RunFilesSource::read(std::size_t most, Which which) {
  Batch batch;
  confirmed_.clear();
  const Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Fd all = folder ? runs::open_folder(folder, "processes") : Fd();
  if (!all) return batch;
  auto due = runs::names_in(all, kMostProcesses);
  std::erase_if(due, [&](const std::string& name) {
    if (!is_process_name(name) || !name.starts_with(names_begin_) || start_us_of(name) < since_us_) return true;
    return processes_[name].silent_rounds++ >= kSilentRounds && round_ % kSilentRounds != 0;
  });
  ++round_;
  const auto in_each = [&](auto read_part) {
    for (const auto& name : due) {
      const Fd opened = runs::open_folder(all, name.c_str());
      auto& process = processes_[name];
      const auto before = batch.parts.size();
      if (opened) read_part(opened, name, process);
      if (batch.more || batch.parts.size() != before) process.silent_rounds = 0;
    }
  };
  in_each([&](const Fd& opened, const std::string& name, Process& process) { read_state(batch, opened, name, process, most); });
  if (which == Which::kLive) return batch;
  std::rotate(due.begin(), std::upper_bound(due.begin(), due.end(), last_), due.end());
  in_each([&](const Fd& opened, const std::string& name, Process& process) {
    if (batch.more) return;
    read_rows(batch, opened, name, process, most);
    if (batch.more) last_ = name;
  });
  return batch;
}

void RunFilesSource::confirm() {
  for (const auto& confirmed : std::exchange(confirmed_, {})) confirmed();
}

// The facts about the process, and its live page.
void RunFilesSource::read_state(Batch& batch, const Fd& folder, const std::string& name, Process& process, std::size_t most) {
  struct stat seen {};
  if (batch.parts.size() + 2 > kMostParts || fstatat(folder.get(), kFactsFile, &seen, AT_SYMLINK_NOFOLLOW) != 0) {
    batch.more = batch.more || batch.parts.size() + 2 > kMostParts;
    return;
  }
  const std::pair<ino_t, std::int64_t> id(seen.st_ino, seen.st_mtim.tv_sec * std::int64_t{1'000'000'000} + seen.st_mtim.tv_nsec);
  if (id != process.facts) {
    const auto text = runs::read_file(folder, kFactsFile, kMostFactsBytes);
    if (!text || (!batch.bytes.empty() && batch.bytes.size() + text->size() > most)) {
      batch.more = batch.more || text.has_value();
      return;
    }
    add(batch, name, kFactsFile, 0, *text, [&process, id] { process.facts = id; });
  }
  auto page = runs::read_file(folder, kLiveFile, sizeof(runtime::LivePage));
  if (!page || page->size() != sizeof(runtime::LivePage) || *page == process.live) return;
  add(batch, name, kLiveFile, 0, *page, [&process, page = *page] { process.live = page; });
}

void RunFilesSource::read_rows(Batch& batch, const Fd& folder, const std::string& name, Process& process, std::size_t most) {
  std::vector<runs::LevelFile> files;
  for (const auto& file : runs::names_in(folder, kMostFiles + 8)) {
    if (kind_of_file(file) == FileKind::kRows && files.size() < kMostFiles) files.push_back(*runs::level_file(file));
  }
  // Coarser levels first: a process merges a file's rows into the next level before it removes the file. The first host's readers rely on
  // that order.
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return std::tuple(-a.level, a.kind, a.number) < std::tuple(-b.level, b.kind, b.number); });
  bool removed = false;
  const auto remove = [&] {
    if (std::exchange(removed, true)) return;
    for (const auto& [file, offset] : process.files) {
      if (std::any_of(files.begin(), files.end(), [&, &sent = file](const auto& f) { return f.name == sent; })) continue;
      if (batch.parts.size() >= kMostParts) {
        batch.more = true;
        return;
      }
      batch.parts.push_back({name, file, 0, 0, true});
      confirmed_.push_back([&process, file = file] { process.files.erase(file); });
    }
  };
  for (const auto& file : files) {
    if (file.level == 0) remove();
    if (!batch.more) read_file(batch, folder, name, process, file.name, most);
    if (batch.more) return;
  }
  remove();
}

void RunFilesSource::read_file(Batch& batch, const Fd& folder, const std::string& name, Process& process, const std::string& file,
                               std::size_t most) {
  const Fd opened = runs::open_file(folder, file.c_str());
  struct stat seen {};
  if (!opened || fstat(opened.get(), &seen) != 0) return;  // the file is gone since the listing
  const auto sent = process.files.find(file);
  const std::uint64_t offset = sent == process.files.end() ? 0 : sent->second;
  const auto size = std::min(static_cast<std::uint64_t>(seen.st_size), kMostFileBytes);
  if (size == offset) return;
  const bool full = batch.parts.size() >= kMostParts;
  if (size < offset && !full) {  // the process took rows back that its disk had no room for
    return add(batch, name, file, size, "", [&process, file, size] { process.files[file] = size; });
  }
  const auto left = most - std::min(most, batch.bytes.size());
  const bool empty = batch.bytes.size() <= most / 2;
  if (full || (left < kLeastRest && !empty)) {
    batch.more = true;
    return;
  }
  auto limit = std::max(left, kLeastRest);
  auto lines = whole_lines(opened, offset, static_cast<std::size_t>(std::min<std::uint64_t>(size - offset, limit)));
  if (lines.empty() && size - offset > limit) {
    batch.more = !empty;
    if (batch.more) return;  // a long line, for which the next message has more room
    limit = kMostLine;
    lines = whole_lines(opened, offset, static_cast<std::size_t>(std::min<std::uint64_t>(size - offset, limit)));
  }
  if (lines.empty()) return;
  process.files.try_emplace(file, 0);  // if the answer gets lost and the file goes, the first host has to remove it, too
  const auto end = offset + lines.size();
  add(batch, name, file, offset, lines, [&process, file, end] { process.files[file] = end; });
  if (size - offset > limit) batch.more = true;
}

}  // namespace shoal::scheduler::cli
