// A line of `shoal doctor`.
#pragma once

#include <string>

namespace shoal::scheduler::cli {

struct Check {
  std::string name;
  char verdict;  // '+' good, '!' Shoal works without something, 'x' Shoal does not work
  std::string found;
  std::string fix;
};

}  // namespace shoal::scheduler::cli
