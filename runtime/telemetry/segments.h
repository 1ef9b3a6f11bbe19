// A file of lines that never grows without bound: segments `NAME.LEVEL-N.jsonl` in a folder (docs/runs.md, "Files").
//
// Lines are appended to level 0. Before a full level drops its oldest segment, each 16 of its lines become one line of the next level.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

class Segments {
 public:
  struct Limits {
    std::size_t bytes = 1u << 20;  // the size of a segment
    std::size_t kept = 2;          // segments of a level
    int levels = 6;                // the last one drops its oldest segment
  };
  // One line instead of several, which are whole and in order; "": nothing of them stays.
  using Merge = std::function<std::string(const std::vector<std::string_view>&)>;

  // `folder` outlives this object. Without `merge` the oldest segments are dropped.
  Segments(const Fd& folder, std::string name, Limits limits, Merge merge = {});

  // Appends lines, each with its end of line. After an error nothing of them is in the file.
  Result<void> append(std::string_view lines) { return append(0, lines); }
  // Bytes in the folder.
  std::size_t bytes() const;

 private:
  static constexpr std::size_t kMerged = 16;
  struct Segment {
    std::uint64_t number = 0;
    std::size_t bytes = 0;
  };
  struct Level {
    Fd file;
    std::vector<Segment> segments = {};  // the oldest first
  };
  std::string file_name(std::size_t level, std::uint64_t number) const;
  Result<void> append(std::size_t level, std::string_view lines);
  Result<void> begin_segment(std::size_t level);
  Result<void> drop_oldest(std::size_t level);
  std::string merged(std::string_view lines) const;

  const Fd& folder_;
  const std::string name_;
  const Limits limits_;
  const Merge merge_;
  std::vector<Level> levels_;
};

}  // namespace shoal::runtime
