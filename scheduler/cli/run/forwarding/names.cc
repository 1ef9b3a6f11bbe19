#include "scheduler/cli/run/forwarding/names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "scheduler/runs/files.h"

namespace shoal::scheduler::cli {

namespace {
constexpr std::array kKinds = {"steps", "spans", "samples", "metrics", "events"};
constexpr std::size_t kMostName = 200;
}  // namespace

std::optional<FileKind> kind_of_file(const std::string& name) {
  if (name == kFactsFile) return FileKind::kFacts;
  if (name == kLiveFile) return FileKind::kLive;
  const auto file = name.size() > kMostName ? std::nullopt : runs::level_file(name);
  if (!file || std::find(kKinds.begin(), kKinds.end(), file->kind) == kKinds.end()) return {};
  // Refuses other spellings of the numbers, such as leading zeros, so that one file has one name.
  if (name != fmt::format("{}.{}-{}.jsonl", file->kind, file->level, file->number)) return {};
  return FileKind::kRows;
}

bool is_process_name(const std::string& name) {
  return !name.empty() && name.size() <= kMostName && name.front() != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
}

std::int64_t start_us_of(const std::string& process) {
  std::int64_t out = 0;
  const char* const end = process.data() + process.size();
  const auto read = std::from_chars(process.data() + process.rfind('-') + 1, end, out);
  return read.ec == std::errc() && read.ptr == end ? out : 0;
}

}  // namespace shoal::scheduler::cli
