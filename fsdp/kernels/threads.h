// Divides work on a range of elements over threads.
//
// Where the process has an OpenMP runtime (PyTorch brings one), its threads do the work. They spin for a while after each PyTorch
// operation, so threads of our own would find no free core. Without such a runtime, the call starts threads and joins them.
#pragma once

#include <cstddef>
#include <functional>

namespace shoal::fsdp {

// The pieces of [0, numel) that threads work on: at most `num_threads`, fewer for a small numel. They begin at multiples of 64.
struct Pieces {
  Pieces(std::size_t numel, int num_threads);
  std::size_t begin(int part) const;
  std::size_t end(int part) const { return part + 1 == count ? numel : begin(part + 1); }
  std::size_t numel;
  int count;
};

// Calls work(begin, end, part) once for each piece and returns their number. The caller's thread takes part; all pieces are done on
// return. GNU's OpenMP hangs in a child forked from a process with OpenMP threads: such a child has to pass 1.
int over_threads(std::size_t numel, int num_threads, const std::function<void(std::size_t begin, std::size_t end, int part)>& work);

}  // namespace shoal::fsdp
