// The version of this release, shared by the command, the Python module and the wheel. (The wire protocol has its own version:
// runtime/net/hello.h.)
#pragma once

namespace shoal {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace shoal
