// The version of this release, in one place: the command, the Python module and the wheel all say this one. (What peers may speak with each
// other is the wire's own version: runtime/net/hello.h.)
#pragma once

namespace shoal {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace shoal
