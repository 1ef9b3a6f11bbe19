// SHOAL_CHECK guards against programmer errors in every build: it prints to stderr and aborts. It is not for data from a peer or a disk,
// for which errors are returned.
#pragma once

namespace shoal {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace shoal

#define SHOAL_CHECK(condition, message)                               \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::shoal::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
