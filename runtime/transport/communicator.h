// Communication among the ranks of a group: collectives, point-to-point messages, and one-sided reads. choice/make_communicator.h chooses
// the transport.
//
// Every rank calls the collectives in the same order; they begin in this order. Sends and receives have an order only within each pair of
// ranks. Each call returns its Work at once; the operation uses the buffers until the Work is done. A failure (a dead rank, diverging
// ranks, a time limit, abort) ends all pending and later operations on every rank with the first cause. Then reform() makes a group without
// the lost ranks. Any thread may call.
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

struct CUstream_st;  // a stream of the CUDA driver

namespace shoal::runtime {

// Parses a dtype by the name that torch gives it, without "torch.". For any other name, returns InvalidArgument with the names that exist.
Result<DType> parse_dtype(std::string_view name);

// Attributes of one operation, which its caller sets.
struct Call {
  // Shown in errors and warnings: a node of a step graph or a parameter's name. Cut after Ledger::kLabelBytes.
  std::string label;
  std::uint64_t step = 0;  // shown in errors and warnings
  Duration timeout{};      // time limit, from the call on; zero: the communicator's default
  // The operation advances in a thread of its own; otherwise, only while a thread waits.
  bool background = false;
  // The collective with its reduction and dtype, for backends that compare calls as text. Set by the communicator, not by the caller.
  std::string what = {};
};

// The values are stored in shared memory (shm/ledger.h), so a new collective is appended at the end.
enum class Collective : std::uint8_t { kNone, kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll, kBarrier };
const char* collective_name(Collective kind);  // "all_gather" for kAllGather, and so on

// A collective with the arguments that the function of Communicator got. Arguments that a collective does not have are empty.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  std::span<const std::byte> input;
  std::span<std::byte> output;       // for a broadcast: the data, on every rank
  std::vector<std::size_t> counts;   // counts of an all_gather or reduce_scatter; send_counts of an all_to_all
  std::vector<std::size_t> receive;  // receive_counts of an all_to_all
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
};

// A pending or completed operation.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool ended() const = 0;
  // Waits until the operation is done, and returns its result. After Cancelled/Interrupted the operation is still pending.
  virtual Result<void> wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// A memory on every rank, which all ranks may read (as in MPI). It exists as long as any reference to it.
class Window {
 public:
  virtual ~Window() = default;
  virtual std::span<std::byte> own() = 0;         // the part of this rank
  virtual std::size_t bytes(int rank) const = 0;  // the size of the part of `rank`
  // The part of `rank` where this process has mapped it; otherwise empty. It lives as long as the window.
  virtual std::span<std::byte> mapped(int /*rank*/) { return {}; }
};

// The public functions check their arguments. For wrong ones they return a Work that has failed, without effect on the group. So an
// implementation gets valid arguments only.
// An input may overlap its output. On CUDA devices NCCL's rules apply: an all_gather's input, and a reduce_scatter's output, may be this
// rank's part of the whole. An all_reduce's input may be its output.
class Communicator {
 public:
  using ConstBytes = std::span<const std::byte>;
  using MutableBytes = std::span<std::byte>;
  using Counts = std::span<const std::size_t>;  // bytes for each rank

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::uint64_t generation() const = 0;  // 1 at first, one more after each reform()
  virtual const char* transport() const = 0;     // name for errors: "shm", ...

  // Puts the inputs of all ranks behind each other into `output`, in rank order. `counts`: the bytes of each rank's input, the same on
  // every rank.
  WorkPtr all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call);
  // Several all_gathers as one operation: the parameters of a unit, each into its own memory.
  struct Gather {
    ConstBytes input;
    MutableBytes output;
    std::vector<std::size_t> counts;
  };
  WorkPtr all_gather_each(std::span<const Gather> gathers, DType dtype, Call call);
  // Reduces the inputs of all ranks elementwise. Rank r gets the r-th part of the result, of counts[r] bytes.
  WorkPtr reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call);
  // Reduces the inputs of all ranks elementwise; every rank gets the result. `output` may be `input`.
  WorkPtr all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call);
  // Sends the root's data to all ranks. The root's Work is done once the others can get the data without the root.
  WorkPtr broadcast(MutableBytes data, int root, DType dtype, Call call);
  // Sends the q-th part of `input`, of send_counts[q] bytes, to rank q. Rank r's bytes become the r-th part of `output`, of
  // receive_counts[r] bytes.
  WorkPtr all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call);
  WorkPtr barrier(Call call);
  // Sends a message to another rank. The n-th send of one rank matches the n-th receive of the other, which must have the same tag.
  WorkPtr send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call);
  WorkPtr receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call);

  // Makes later work of `stream` wait for an operation of this communicator: on devices without blocking the host, elsewhere by wait(). If
  // the operation fails later, `stream` reads undefined values, and wait() returns the failure.
  virtual Result<void> order_after(Work& work, CUstream_st* /*stream*/) { return work.wait(); }

  // Makes a window, in which this rank has `bytes` bytes. Every rank makes the call, with a size of its own.
  virtual Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) = 0;
  // Copies from the part of another rank, which takes no action. The callers have to prevent concurrent writes to that part.
  virtual Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) = 0;

  // Fails all pending and later operations, on every rank.
  virtual void abort(const Error& cause) = 0;
  // The cause of the failure, if this communicator has failed.
  virtual std::optional<Error> failed() const = 0;
  // The ranks that are known to have left or died.
  virtual std::vector<int> lost() const = 0;
  // Makes the next generation of the group: the ranks that are not lost, with new numbers in the same order. All remaining ranks call it.
  // All leave out the ranks that are lost for the first caller. This communicator fails if it has not failed yet.
  virtual Result<std::shared_ptr<Communicator>> reform() = 0;
  // Declares that this rank makes no more calls. Operations of other ranks fail if they still need this rank.
  virtual void leave() = 0;

 protected:
  // Returns InvalidArgument unless `rank` is a rank of the group and, for Self::kRefused, another one. `what` names it in the error:
  // "root", "source", ...
  enum class Self { kRefused, kAllowed };
  Result<void> check_peer(int rank, const char* what, Self self) const;

 private:
  virtual WorkPtr start_collective(CollectiveSpec spec, Call call) = 0;
  // At least one gather; starts them one by one unless a transport has a better way.
  virtual WorkPtr start_gathers(std::span<const Gather> gathers, DType dtype, Call call);
  virtual WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) = 0;
  virtual WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) = 0;

  Result<void> check_counts(Counts counts, std::size_t total, const char* what, DType dtype) const;
};

// Returns a Work that failed before it began.
WorkPtr failed_work(Error error);
// The error of a call in a child that was forked from a rank's process.
Error forked_child_error();

}  // namespace shoal::runtime
