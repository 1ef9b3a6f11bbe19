// During its lifetime this thread's arithmetic treats subnormal inputs and results as zero: CPUs compute with them ten times slower.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace shoal::fsdp {

class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // flush to zero, denormals are zero
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    __asm__ volatile("msr fpcr, %0" : : "r"(before_ | (std::uint64_t{1} << 24)));
  }
  ~FlushSubnormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  std::uint64_t before_ = 0;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif

 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace shoal::fsdp
