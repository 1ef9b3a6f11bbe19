// A device without hardware: streams, marks, communicators and memory on a virtual clock, and the host that puts work on them.
//
// The host never waits, except in synchronize. It puts operations on streams at its own clock; each runs when the one before it on its
// stream, the one before it on its communicator, and the marks for which its stream waits have ended. Operations that share a link run at
// once, each at its part of the link's bandwidth. Transfers do not slow computation down here, although NCCL's kernels do on hardware.
//
// Memory is counted as torch's caching allocator does: in the order of the host's calls, with one pool per stream. Before memory is freed,
// its pool's stream has to wait for the last use elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace shoal::fsdp {

// Durations in seconds, and bandwidths in bytes per second.
struct DeviceCosts {
  double launch = 5e-6;       // the host puts an operation on a stream
  double record = 1e-6;       // the host records an event, or makes a stream wait for one
  double hook = 50e-6;        // the host enters a hook of the program
  double action = 2e-6;       // the host carries out an action of the step machine
  double rendezvous = 30e-6;  // the host waits for control words of other ranks
  double memory = 3e12;       // the device reads or writes its memory
  double to_device = 50e9, to_host = 50e9;
};

// Ranks whose collectives run one at a time. Communicators of one link share its bandwidth.
struct Communicator {
  int ranks = 1;
  double bus_bandwidth = 1e9;  // as nccl-tests defines it
  double latency = 0;
  int link = 0;

  double gather_seconds(double bytes) const;  // all_gather or reduce_scatter, of these bytes on all ranks together
  double all_reduce_seconds(double bytes) const { return 2 * gather_seconds(bytes) - latency; }
};

class VirtualDevice {
 public:
  // The program's stream, and those of transfers. Each names a pool of memory, too.
  enum class Stream : std::uint8_t { kProgram, kPack, kGather, kReduce, kReplicas, kCopies };
  static constexpr std::size_t kNumStreams = 6;
  enum class Kind : std::uint8_t { kShards, kWhole, kPacked, kGradients, kActivations };
  static constexpr std::size_t kNumKinds = 5;
  // The number of an operation; kBegin: the begin of time.
  using Mark = std::int32_t;
  static constexpr Mark kBegin = -1;

  struct Operation {
    Stream stream = Stream::kProgram;
    std::string label = {};  // "" for a wait
    double seconds = 0;      // duration if it had its link alone
    int link = -1;           // -1: none
    int communicator = -1;   // -1: no collective
    Mark after = kBegin;     // a mark for which the stream waits
    double issued = 0, start = -1, end = -1;
  };
  struct Memory {
    Stream pool = Stream::kProgram;
    Kind kind = Kind::kWhole;
    double bytes = 0;
  };

  explicit VirtualDevice(DeviceCosts costs) : costs_(costs) {}
  const DeviceCosts& costs() const { return costs_; }

  // ---- the host
  double now() const { return now_; }
  void spend(double seconds) { now_ += seconds; }
  // The host waits for a mark.
  void synchronize(Mark mark);
  // The host waits for all streams.
  void synchronize();

  // ---- streams
  Mark run(Operation operation);
  // A kernel that reads and writes `bytes` in all.
  Mark move(Stream stream, const std::string& label, double bytes);
  // A collective of the communicator with this number, which takes `seconds` if no other one shares its link.
  Mark collective(Stream stream, const std::string& label, int number, const Communicator& communicator, double seconds);
  Mark copy_to_device(Stream stream, const std::string& label, double bytes);
  Mark copy_to_host(Stream stream, const std::string& label, double bytes);
  // The end of the stream's work so far.
  Mark mark(Stream stream);
  void wait(Stream stream, Mark mark);
  // The time at which the operation ends. Runs all operations that it depends on.
  double end_of(Mark mark);
  const std::vector<Operation>& operations() const { return operations_; }
  // The operations that began at `since` or later, one per line, in the order of their begins.
  std::string timeline(double since) const;

  // ---- memory
  Memory allocate(Stream pool, Kind kind, double bytes);
  void free(Memory& memory);
  double allocated() const { return allocated_; }
  double allocated(Kind kind) const { return by_kind_[at(kind)]; }
  // The largest sum of allocated memory since the last call of forget_peak, and its parts by kind.
  double peak() const { return peak_; }
  double at_peak(Kind kind) const { return by_kind_at_peak_[at(kind)]; }
  // The pools' largest sizes, added up: what the allocator reserves at least.
  double reserved() const;
  void forget_peak();

 private:
  template <class E>
  static std::size_t at(E e) {
    return static_cast<std::size_t>(e);
  }
  // Lets time pass until the operation has ended, or, with kBegin, all have.
  void pass_until_ended(Mark mark);
  bool can_start(const Operation& operation) const;
  bool has_ended(Mark mark) const { return mark == kBegin || operations_[at(mark)].end >= 0; }

  const DeviceCosts costs_;
  double now_ = 0;         // the host's clock
  double device_now_ = 0;  // the time up to which operations have run
  std::vector<Operation> operations_;
  std::array<std::deque<Mark>, kNumStreams> queues_;  // by stream: operations that have not ended
  std::vector<std::deque<Mark>> communicators_;       // by number: operations that have not ended, in the order of issue
  std::vector<std::pair<Mark, double>> running_;      // with the seconds that each still takes alone on its link
  std::array<Mark, kNumStreams> last_ = {kBegin, kBegin, kBegin, kBegin, kBegin, kBegin};
  double allocated_ = 0, peak_ = 0;
  std::array<double, kNumKinds> by_kind_ = {}, by_kind_at_peak_ = {};
  std::array<double, kNumStreams> pools_ = {}, pool_peaks_ = {};
};

const char* to_string(VirtualDevice::Stream stream);

}  // namespace shoal::fsdp
