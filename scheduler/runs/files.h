// Files of a folder that others write: opened without following links or waiting, and read within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/fd.h"

namespace shoal::scheduler::runs {

// The folder `name` below `folder`; empty if it is a link or no folder.
Fd open_folder(const Fd& folder, const char* name);
// A regular file, to be read; empty if it is anything else.
Fd open_file(const Fd& folder, const char* name);
// The content of a regular file of at most `most` bytes.
std::optional<std::string> read_file(const Fd& folder, const char* name, std::size_t most);
// At most `most` names, without those that begin with a dot. `left_out` counts the others.
std::vector<std::string> names_in(const Fd& folder, std::size_t most, std::size_t* left_out = nullptr);

// KIND.LEVEL-N.jsonl
struct LevelFile {
  std::string name, kind;
  int level = 0;
  std::uint64_t number = 0;
};
std::optional<LevelFile> level_file(const std::string& name);

// Follows the files of one kind of rows: their levels, and the next file of each.
class LevelFiles {
 public:
  struct Limits {
    std::size_t line_bytes, file_bytes;
    std::size_t tail_bytes = 0;    // above 0: the first call reads only so much, the end of the newest file of level 0
    std::size_t newest_lines = 0;  // above 0: the first call reads only so many lines, the newest ones
  };
  // `merges`: the writer merges older files into the next, coarser level. If a file disappeared before it was read, that level has its
  // rows.
  LevelFiles(std::string kind, bool merges, Limits limits) : kind_(std::move(kind)), merges_(merges), limits_(limits) {}

  enum class Outcome {
    kRead,
    kAgain,  // files were merged before they were read: drop all rows and call read() again
  };
  // Passes the complete lines that were appended since the last call, older ones first; a line that is too long as nullopt. After the
  // first call only those of level 0: coarser levels then repeat rows.
  using OnLine = std::function<void(int level, std::optional<std::string_view> line)>;
  Outcome read(const Fd& folder, const std::vector<LevelFile>& listed, const OnLine& on_line);

 private:
  struct Cursor {
    std::uint64_t offset = 0;
    bool in_long_line = false;
  };
  bool has_gap(const std::vector<LevelFile>& files) const;
  void skip_to_newest(const Fd& folder, const std::vector<LevelFile>& files);
  bool read_file(const Fd& folder, const LevelFile& file, const OnLine& on_line);
  void read_lines(const Fd& file, Cursor& cursor, int level, const OnLine& on_line);

  std::string kind_;
  bool merges_;
  Limits limits_;
  bool begun_ = false;
  std::map<std::pair<int, std::uint64_t>, Cursor> cursors_;  // by level and number; only files that may grow
};

}  // namespace shoal::scheduler::runs
