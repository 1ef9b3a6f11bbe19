// What a rank adds to the norm of a sharded tensor.
#pragma once

#include <cstddef>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// Of the elements of one shard, in fp64: the sum of |x|^order; for order 0 how many are not zero; for infinity the greatest |x|, for
// -infinity the least (+infinity of none). NaN if an element is.
double power_sum(DType dtype, const std::byte* data, std::size_t numel, double order, int num_threads);

}  // namespace shoal::fsdp
