// Communication among the ranks of a group: collectives, point-to-point messages, and one-sided reads. make_communicator.h chooses the
// transport.
//
// Every rank calls the collectives in the same order, in which they start; sends and receives are ordered per pair of ranks only. Each call
// returns its Work at once, and the operation uses the buffers until the Work is done. A failure (a dead rank, diverging ranks, a
// deadline, abort) ends all pending and later operations on every rank with the first cause. Then reform() makes a group without the lost
// ranks. Any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/dtype.h"
#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/transport/reduce_op.h"

namespace shoal::runtime {

// Parses the dtype of a message, by torch's name without "torch.". Returns InvalidArgument, with the known names, for another one.
Result<DType> parse_dtype(std::string_view name);

// Attributes of one operation, set by its caller.
struct Call {
  std::string label;        // for messages: a step-graph node or a parameter's name; cut after Ledger::kLabelBytes
  std::uint64_t step = 0;   // for messages
  Duration timeout{};       // from the call on; zero: the communicator's default
  bool background = false;  // progress in a thread of its own; otherwise only while a thread waits
  std::string what = {};    // collective, reduction and dtype: set by communicators that compare them as text
};

// Values stand in shared memory (shm/ledger.h), so a new collective goes to the end.
enum class Collective : std::uint8_t { kNone, kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll, kBarrier };
const char* collective_name(Collective kind);  // "all_gather", ...

// A collective with its arguments, as the functions of Communicator take them. Arguments that a collective does not have are empty.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  std::span<const std::byte> input;
  std::span<std::byte> output;       // the data of a broadcast, on every rank
  std::vector<std::size_t> counts;   // all_gather, reduce_scatter; send_counts of an all_to_all
  std::vector<std::size_t> receive;  // receive_counts of an all_to_all
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
};

// An operation under way.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Waits until the operation is done and returns its result. After Cancelled/Interrupted it is still under way.
  virtual Result<void> wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// Memory on every rank that all ranks may read (as in MPI). It lives as long as any reference to it.
class Window {
 public:
  virtual ~Window() = default;
  virtual std::span<std::byte> own() = 0;         // this rank's part
  virtual std::size_t bytes(int rank) const = 0;  // size of a rank's part
};

// The public functions check the arguments and refuse wrong ones by a Work that has failed, without effect on the group. So an
// implementation gets valid arguments only.
class Communicator {
 public:
  using ConstBytes = std::span<const std::byte>;
  using MutableBytes = std::span<std::byte>;
  using Counts = std::span<const std::size_t>;  // bytes, one entry per rank

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::uint64_t generation() const = 0;  // 1, incremented by each reform()
  virtual const char* transport() const = 0;     // "shm", ...

  // `output` is the concatenation of all inputs in rank order. `counts`: the input bytes of each rank, equal on every rank.
  WorkPtr all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call);
  // Reduces all inputs elementwise; rank r gets the r-th part, of counts[r] bytes.
  WorkPtr reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call);
  // `output` may be `input`.
  WorkPtr all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call);
  // Sends the root's data to all ranks. The root's Work is done once the others can fetch the data without the root.
  WorkPtr broadcast(MutableBytes data, int root, DType dtype, Call call);
  // Sends the q-th part of `input`, of send_counts[q] bytes, to rank q. The r-th part of `output`, of receive_counts[r] bytes, comes from
  // rank r.
  WorkPtr all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call);
  WorkPtr barrier(Call call);
  // A message between two ranks. The n-th send of one rank matches the n-th receive of the other, whose tag must be equal.
  WorkPtr send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call);
  WorkPtr receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call);

  // Makes a window with `bytes` bytes on this rank. Every rank calls it, with its own size.
  virtual Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) = 0;
  // Copies from a rank's part of a window, without that rank's participation. The callers have to prevent concurrent writes.
  virtual Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) = 0;

  // Fails all operations, on every rank.
  virtual void abort(const Error& cause) = 0;
  // The cause of the failure, if this communicator has failed.
  virtual std::optional<Error> failed() const = 0;
  // The ranks known to be gone.
  virtual std::vector<int> lost() const = 0;
  // Makes the next generation: the ranks that are not lost, renumbered in order. All of them call it; the first caller's lost() counts for
  // all. This communicator fails, if it has not failed yet.
  virtual Result<std::shared_ptr<Communicator>> reform() = 0;
  // Declares that this rank makes no more calls. Operations of other ranks that still need it fail.
  virtual void leave() = 0;

 protected:
  // Returns InvalidArgument unless `rank` is a rank of the group. `what`: "root", "source", ...
  enum class Self { kRefused, kAllowed };
  Result<void> check_peer(int rank, const char* what, Self self) const;

 private:
  virtual WorkPtr start_collective(CollectiveSpec spec, Call call) = 0;
  virtual WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) = 0;
  virtual WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) = 0;

  Result<void> check_counts(Counts counts, std::size_t total, const char* what, DType dtype) const;
};

// Returns a Work that failed before it began.
WorkPtr failed_work(Error error);

}  // namespace shoal::runtime
