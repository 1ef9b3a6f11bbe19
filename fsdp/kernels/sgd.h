// Stochastic gradient descent with momentum, fused: each array is read once and written once.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "fsdp/kernels/elementwise.h"
#include "fsdp/kernels/optim_constants.h"

namespace shoal::fsdp {

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient
  bool nesterov = false;
  bool maximize = false;
  bool first = false;     // no momentum yet: the buffer becomes the gradient
  double grad_scale = 1;  // divides the gradient; unless it is 1, the quotient is written back
};

// The constants of a step.
template <class T>
SgdConstants<T> sgd_constants(const Sgd& options);

// Indices into Shard::at.
struct SgdArrays {
  enum : std::size_t { kP, kG, kBuffer };  // kBuffer: momentum, or nullptr
};

// One step as torch.optim.SGD computes it (Nesterov's momentum: Sutskever et al. 2013):
//   buffer = momentum * buffer + (1 - dampening) * g;  p -= lr * buffer, or lr * (g + momentum * buffer).
void sgd(const Sgd& options, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards, int num_threads);

// The same step as an update, for callers that run it in parts.
Elementwise sgd_update(const Sgd& options, const std::array<DType, kMaxArrays>& dtypes);

}  // namespace shoal::fsdp
