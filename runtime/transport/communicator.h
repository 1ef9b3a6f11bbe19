// Messages among the ranks of a group: the collectives, point to point, and one-sided reads, whatever carries them (shared memory, a
// process group; UCX and NCCL later).
//
// Operations start in the order of the calls, which every rank makes in the same order; sends and receives only keep the order among
// those of the same pair of ranks. Each call returns its Work at once: its buffers belong to the operation until that is done. A failure
// (a dead rank, ranks that diverge, a deadline, abort) ends every operation that is pending and every later one, on every rank, with the
// first cause; reform() goes on without the lost ranks. Any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/transport/dtype.h"

namespace shoal::runtime {

// What the caller says about one operation.
struct Call {
  std::string label;        // for people: a node of the step graph, a parameter's name; cut after Ledger::kLabelBytes
  std::uint64_t step = 0;   // likewise
  Duration timeout{};       // from the call on; zero: the communicator's own
  bool background = false;  // progress is made while the caller computes; otherwise whenever somebody waits
  std::string what = {};    // the collective, its operation and dtype: set by a communicator whose ranks compare that in words
};

// An operation under way.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Until it is done: how it ended. Cancelled/Interrupted leaves it under way.
  virtual Result<void> wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// Memory of every rank that all may read (MPI's word). It lives as long as somebody holds it.
class Window {
 public:
  virtual ~Window() = default;
  virtual std::span<std::byte> own() = 0;         // this rank's part
  virtual std::size_t bytes(int rank) const = 0;  // of a rank's part
};

class Communicator {
 public:
  using ConstBytes = std::span<const std::byte>;
  using MutableBytes = std::span<std::byte>;
  using Counts = std::span<const std::size_t>;  // bytes, one entry per rank

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::uint64_t generation() const = 0;  // 1, and one more with every reform()
  virtual const char* transport() const = 0;     // "shm", ...

  // Everybody's input, one behind the other in the order of ranks. `counts`: what each rank brings, the same on every rank.
  virtual WorkPtr all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) = 0;
  // The reduction of everybody's input, of which rank r gets the r-th part, of counts[r] bytes.
  virtual WorkPtr reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) = 0;
  // `output` may be `input`.
  virtual WorkPtr all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) = 0;
  // The root's data to everybody. The root's is done once its data can be fetched without it.
  virtual WorkPtr broadcast(MutableBytes data, int root, DType dtype, Call call) = 0;
  // The q-th part of `input`, of send_counts[q] bytes, goes to rank q; what rank r sends, receive_counts[r] bytes, becomes the r-th part of
  // `output`.
  virtual WorkPtr all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call) = 0;
  virtual WorkPtr barrier(Call call) = 0;
  // A message between two ranks; the n-th send of one with a tag meets the n-th receive of the other, which has the same tag.
  virtual WorkPtr send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) = 0;
  virtual WorkPtr receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) = 0;

  // Memory of `bytes` on this rank. Every rank calls it, each with its own size.
  virtual Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) = 0;
  // Copies from a rank's part of a window, of which that rank need not know. Who writes there at the same time is the callers' business.
  virtual Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) = 0;

  // Ends everything, on every rank.
  virtual void abort(const Error& cause) = 0;
  // Why this communicator can do no more.
  virtual std::optional<Error> failed() const = 0;
  // The ranks that are gone, as far as is known.
  virtual std::vector<int> lost() const = 0;
  // The next generation: the ranks that are not lost, numbered again in their order. They all call it, and agree on whom the first of them
  // misses. This one has failed, or does so now.
  virtual Result<std::shared_ptr<Communicator>> reform() = 0;
  // This rank makes no more calls: whoever needs it still is told so.
  virtual void leave() = 0;
};

// What every implementation refuses, with the same words. `input` and `output` are bytes.
Result<void> check_all_gather(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts counts, DType dtype);
Result<void> check_reduce_scatter(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts counts, DType dtype,
                                  ReduceOp op);
Result<void> check_all_reduce(std::size_t input, std::size_t output, DType dtype, ReduceOp op);
Result<void> check_all_to_all(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts send,
                              Communicator::Counts receive, DType dtype);
// `what`: "root", "source", ...
Result<void> check_peer(const Communicator& c, int rank, const char* what, bool may_be_self);

// An operation that failed before it began.
WorkPtr failed_work(Error error);

}  // namespace shoal::runtime
