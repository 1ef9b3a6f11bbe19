// The names and sizes that a run's folder may have, and that the first host therefore accepts from other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace shoal::scheduler::cli {

inline constexpr const char* kFactsFile = "process.json";
inline constexpr const char* kLiveFile = "live";

enum class FileKind {
  kFacts,  // process.json, which is replaced as a whole
  kLive,   // the live page, which is written in place
  kRows,   // rows, which are appended
};
// nullopt: a run's process has no such file.
std::optional<FileKind> kind_of_file(const std::string& name);
// True for a name of letters, digits, '.', '_' and '-', with no dot in front.
bool is_process_name(const std::string& name);
// When the process began, in microseconds since 1970: the name ends with it. 0 without it.
std::int64_t start_us_of(const std::string& process);

inline constexpr std::uint64_t kMostFactsBytes = 4 << 20;     // as much as readers accept
inline constexpr std::uint64_t kMostFileBytes = 16 << 20;     // a reader leaves the rest out; events take 8 MB at most
inline constexpr std::uint64_t kMostProcessBytes = 64 << 20;  // a week's rows of all kinds and levels take less
inline constexpr std::size_t kMostFiles = 80;          // five kinds with six levels of two files each, and files that exist for a moment
inline constexpr std::size_t kMostProcesses = 20'000;  // as many as readers accept
inline constexpr std::size_t kMostParts = 1'000;       // per message, whose body has at most 1 MiB

}  // namespace shoal::scheduler::cli
