// A rank's part of the norm of a sharded tensor.
#pragma once

#include <cstddef>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// Over the elements of one shard, in fp64: the sum of |x|^order; for order 0 the number of non-zeros. For infinity the largest |x|, for
// -infinity the smallest (+infinity without elements). NaN if an element is.
double power_sum(DType dtype, const std::byte* data, std::size_t numel, double order, int num_threads);

// out[i] = power_sum of row i, whose bits depend on the row alone: not on the shard around it, nor on the number of threads.
void row_power_sums(DType dtype, const std::byte* data, std::size_t rows, std::size_t row_numel, double order, double* out,
                    int num_threads);

}  // namespace shoal::fsdp
