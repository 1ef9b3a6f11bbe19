// A copy of memory by several cores, past their caches: one alone does not fill the memory's bandwidth, nor gets fresh pages as fast as the
// kernel has them.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/core/result.h"

namespace shoal::runtime {

// Whether so many bytes are worth more than one core, and there is one.
bool is_wide(std::size_t bytes);

// `to` is as long as `from`, and apart from it. Threads of its own where is_wide(), at most three, of which none outlives the call; where
// there is no thread to be had, this one copies.
void wide_copy(std::span<std::byte> to, std::span<const std::byte> from);

// The same into a shared mapping that nobody has touched. ResourceExhausted where the machine has no pages for it.
Result<void> wide_fill(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace shoal::runtime
