// Work on a range of elements, divided over threads.
//
// Where an OpenMP runtime is in the process (PyTorch brings one) its threads do it: they are there anyway, and after each of PyTorch's own
// operations they spin for a while, on the cores that threads of ours would need. Otherwise threads are started that end with the call.
#pragma once

#include <cstddef>
#include <functional>

namespace shoal::fsdp {

// Calls work(begin, end, part) once for each of the returned number of pieces of [0, numel); at most num_threads, fewer where numel is
// small. Pieces begin at multiples of 64. This thread takes part; all are done when it returns. GNU's OpenMP hangs in a child that was
// forked off while it had threads: such a process asks for one thread.
int over_threads(std::size_t numel, int num_threads, const std::function<void(std::size_t begin, std::size_t end, int part)>& work);

}  // namespace shoal::fsdp
