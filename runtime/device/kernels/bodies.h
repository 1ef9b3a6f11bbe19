// The work of one thread of each kernel, as plain functions. A kernel calls one with its number among all threads; a test on the host calls
// it for each number in turn. Threads share the elements in strides, so that neighbours read neighbouring memory.
#pragma once

#include "runtime/device/kernels/element.h"

namespace shoal::runtime::kernels {

// A place in this kernel's grid.
struct Thread {
  std::uint64_t number, total;
};

struct CastArguments {
  const void* in;
  void* out;
  std::uint64_t numel;
  DTypeNumber from, to;
};

SHOAL_HOST_DEVICE inline void cast(Thread thread, const CastArguments& a) {
  const bool wide = a.from == kWide && a.to == kWide;
  for (std::uint64_t i = thread.number; i < a.numel; i += thread.total) {
    if (wide) {
      store(a.to, a.out, i, load<double>(a.from, a.in, i));
    } else {
      store(a.to, a.out, i, load<float>(a.from, a.in, i));
    }
  }
}

inline constexpr int kMaxSources = 64;  // at most so many ranks on one host

struct SumArguments {
  const void* sources[kMaxSources];
  void* out;
  std::uint64_t numel;
  double scale;
  int num_sources;
  DTypeNumber from, to;
  bool accumulate;
};

template <class T>
SHOAL_HOST_DEVICE inline void sum_as(Thread thread, const SumArguments& a) {
  const T scale = static_cast<T>(a.scale);
  for (std::uint64_t i = thread.number; i < a.numel; i += thread.total) {
    T sum = load<T>(a.from, a.sources[0], i);
    for (int s = 1; s < a.num_sources; ++s) sum += load<T>(a.from, a.sources[s], i);
    sum *= scale;
    if (a.accumulate) sum += load<T>(a.to, a.out, i);
    store(a.to, a.out, i, sum);
  }
}

// out = ((s0 + s1) + ...) * scale, or added to out: in this order, in fp32, or in fp64 if either dtype is.
SHOAL_HOST_DEVICE inline void sum(Thread thread, const SumArguments& a) {
  const bool wide = a.from == kWide || a.to == kWide;
  wide ? sum_as<double>(thread, a) : sum_as<float>(thread, a);
}

// A parameter that is packed: `bytes` bytes at `data`, and at `offset` in the buffer.
struct PackRow {
  void* data;
  std::uint64_t offset, bytes;
};

struct PackArguments {
  const PackRow* rows;  // in memory of the device
  std::uint64_t num_rows;
  std::uint8_t* buffer;
  bool unpack;  // true: copies from the buffer into the rows
};

template <class Word>
SHOAL_HOST_DEVICE inline void copy_words(std::uint64_t& i, std::uint64_t stride, const PackRow& row, const PackArguments& a) {
  auto* const data = static_cast<Word*>(row.data);
  auto* const packed = reinterpret_cast<Word*>(a.buffer + row.offset);
  const std::uint64_t num_words = row.bytes / sizeof(Word);
  for (; i < num_words; i += stride) {
    if (a.unpack) {
      data[i] = packed[i];
    } else {
      packed[i] = data[i];
    }
  }
  i -= num_words;
}

struct Word16 {
  std::uint64_t low, high;
};

// The threads share all rows' words as if these lay behind each other, so that many small rows keep them busy.
SHOAL_HOST_DEVICE inline void pack(Thread thread, const PackArguments& a) {
  std::uint64_t i = thread.number;
  for (std::uint64_t r = 0; r < a.num_rows; ++r) {
    const PackRow row = a.rows[r];
    const auto ends = reinterpret_cast<std::uint64_t>(row.data) | reinterpret_cast<std::uint64_t>(a.buffer + row.offset) | row.bytes;
    if (ends % 16 == 0) {
      copy_words<Word16>(i, thread.total, row, a);
    } else if (ends % 4 == 0) {
      copy_words<std::uint32_t>(i, thread.total, row, a);
    } else {
      copy_words<std::uint8_t>(i, thread.total, row, a);
    }
  }
}

// The sum of squares in fp64, in an order that depends on the number of elements only. In three steps: kSquareThreads threads add every
// kSquareThreads-th square each, kSquareSums threads add every kSquareSums-th of these sums, and one thread adds the results.
inline constexpr unsigned kSquareThreads = 1u << 16, kSquareSums = 256;

struct SquareArguments {
  const void* in;
  std::uint64_t numel;
  double* partial;  // kSquareThreads + kSquareSums elements
  double* out;
  DTypeNumber from;
};

SHOAL_HOST_DEVICE inline double fused(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

SHOAL_HOST_DEVICE inline void square(Thread thread, const SquareArguments& a) {
  double out = 0;
  for (std::uint64_t i = thread.number; i < a.numel; i += thread.total) {
    const double x = load<double>(a.from, a.in, i);
    out = fused(x, x, out);
  }
  a.partial[thread.number] = out;
}
SHOAL_HOST_DEVICE inline void square_sums(Thread thread, const SquareArguments& a) {
  double out = 0;
  for (unsigned i = static_cast<unsigned>(thread.number); i < kSquareThreads; i += kSquareSums) out += a.partial[i];
  a.partial[kSquareThreads + thread.number] = out;
}
SHOAL_HOST_DEVICE inline void square_total(Thread thread, const SquareArguments& a) {
  if (thread.number != 0) return;
  double out = 0;
  for (unsigned i = 0; i < kSquareSums; ++i) out += a.partial[kSquareThreads + i];
  *a.out = out;
}

}  // namespace shoal::runtime::kernels
