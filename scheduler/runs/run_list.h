// The runs below some folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::scheduler::runs {

struct ListedRun {
  std::string name, path;
  std::int64_t changed_us = 0;  // when its folder or processes/ last got an entry
};

// The newest first, at most `most`. Each folder of `roots` has runs as its entries, or is a run itself.
std::vector<ListedRun> list_runs(const std::vector<std::string>& roots, std::size_t most = 10'000);

}  // namespace shoal::scheduler::runs
