#include "runtime/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace shoal {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  // stdio, not the logger: this may run when the logger is what is broken.
  std::fprintf(stderr, "shoal: CHECK failed at %s:%d: %s: %s\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace shoal
