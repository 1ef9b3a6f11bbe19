// One element's step of SGD, and the work of one thread of the kernel. Operations and roundings are those of fsdp/kernels/sgd.cc: an
// element has the same bits on a device and on a CPU with FMA.
#pragma once

#include "fsdp/kernels/cuda/update_body.h"
#include "fsdp/kernels/optim_constants.h"

namespace shoal::fsdp::cuda {

template <class T>
struct SgdElement {
  T p, g, buffer;
};

template <class T>
SHOAL_HOST_DEVICE inline void step(const SgdConstants<T>& c, bool buffered, SgdElement<T>& e) {
  if (c.unscale) e.g = e.g / c.grad_scale;
  T g = e.g * c.sign;
  if (c.decays) g = fused(e.p, c.decay, g);
  if (buffered) {
    e.buffer = c.first ? g : fused(g, c.taken, e.buffer * c.momentum);
    g = c.nesterov ? fused(e.buffer, c.momentum, g) : e.buffer;
  }
  e.p = fused(-c.lr, g, e.p);
}

inline constexpr int kBuffer = 2;  // may be absent

template <class T>
using SgdArguments = UpdateArguments<SgdConstants<T>>;
static_assert(sizeof(SgdArguments<double>) <= 4096);

template <class T>
SHOAL_HOST_DEVICE inline void sgd(Thread thread, const SgdArguments<T>& a) {
  over_elements(thread, a, [&a](const UpdateShard& shard, std::uint64_t i) {
    const bool buffered = shard.at[kBuffer] != nullptr;
    SgdElement<T> e{load<T>(a, shard, kP, i), load<T>(a, shard, kG, i),
                    buffered && !a.constants.first ? load<T>(a, shard, kBuffer, i) : T{0}};
    step(a.constants, buffered, e);
    if (a.constants.unscale) store(a, shard, kG, i, e.g);
    if (buffered) store(a, shard, kBuffer, i, e.buffer);
    store(a, shard, kP, i, e.p);
    if (shard.at[kCopy] != nullptr) store(a, shard, kCopy, i, e.p);
  });
}

}  // namespace shoal::fsdp::cuda
