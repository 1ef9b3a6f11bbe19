#include "runtime/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace shoal {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  // Uses stdio because the logger itself may be broken.
  std::fprintf(stderr, "shoal: CHECK failed at %s:%d: %s: %s\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace shoal
