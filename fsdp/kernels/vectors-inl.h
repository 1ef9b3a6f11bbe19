// Vector loops shared by the kernels. Each kernel's file includes this one and is compiled once per instruction set, so this one is, too.
#if defined(SHOAL_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_KERNELS_VECTORS_INL_H_
#undef SHOAL_KERNELS_VECTORS_INL_H_
#else
#define SHOAL_KERNELS_VECTORS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

// Prefetch distance in bytes. Hardware prefetchers stop at the end of each page of each array. A prefetch by instructions gains some
// 10 % of bandwidth (measured).
inline constexpr std::size_t kAheadBytes = 2048;

// Calls one(a, i) for every vector of elements: a[k] + i is its address in array k. The tail runs the same instructions on a copy. So an
// element's bits do not depend on the shard's end, and nothing is stored beyond it.
template <std::size_t kArrays, class D, class F>
HWY_INLINE void over_vectors(D d, hwy::HWY_NAMESPACE::TFromD<D>* const* at, std::size_t numel, const F& one) {
  using T = hwy::HWY_NAMESPACE::TFromD<D>;
  const std::size_t lanes = hwy::HWY_NAMESPACE::Lanes(d);
  T* a[kArrays];
  for (std::size_t k = 0; k < kArrays; ++k) a[k] = at[k];
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    for (std::size_t k = 0; k < kArrays; ++k) hwy::Prefetch(a[k] + i + kAheadBytes / sizeof(T));
    one(a, i);
  }
  if (const std::size_t rest = numel - i; rest > 0) {
    HWY_ALIGN T buffers[kArrays][HWY_MAX_BYTES / sizeof(T)] = {};
    T* copies[kArrays];
    for (std::size_t k = 0; k < kArrays; ++k) {
      std::memcpy(buffers[k], a[k] + i, rest * sizeof(T));
      copies[k] = buffers[k];
    }
    one(copies, 0);
    for (std::size_t k = 0; k < kArrays; ++k) std::memcpy(a[k] + i, buffers[k], rest * sizeof(T));
  }
}

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
