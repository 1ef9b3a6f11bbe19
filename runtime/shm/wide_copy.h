// Copies of memory by several cores, which bypass their caches. One core can neither use the whole memory bandwidth nor fault in new pages
// as fast as the kernel provides them.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/core/result.h"

namespace shoal::runtime {

// Returns true if a copy of `bytes` bytes is large enough for several cores, and there are several.
bool is_wide(std::size_t bytes);

// Copies `from` to `to`, which has the same size and does not overlap, with stores that leave `to` out of the caches.
void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from);

// Copies `from` to `to`, which has the same size and does not overlap. If is_wide(), up to three extra threads help for the time of the
// call; if no thread can be started, the caller copies alone.
void wide_copy(std::span<std::byte> to, std::span<const std::byte> from);

// As wide_copy(), into a shared mapping whose pages do not exist yet. Returns ResourceExhausted if the machine has no pages for it.
Result<void> wide_fill(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace shoal::runtime
