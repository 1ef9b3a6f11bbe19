// SHOAL_CHECK: programmer errors, in every build. Logs and aborts; supervision restarts the process. Never for what a
// peer or disk sent.
#pragma once

namespace shoal {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace shoal

#define SHOAL_CHECK(condition, message)                               \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::shoal::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
