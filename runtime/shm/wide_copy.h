// A copy of memory by several cores: one alone does not fill the memory's bandwidth.
#pragma once

#include <cstddef>
#include <span>

namespace shoal::runtime {

// `to` is as long as `from`, and apart from it. Threads of its own beyond 64 MiB, at most three, of which none outlives the call; where
// there is no thread to be had, this one copies.
void wide_copy(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace shoal::runtime
