// A rank's step record: memory of its node that outlives the rank's process. It holds the optimizer's states, the reduced gradients (or the
// new values of rows and states, where a device has made the update), the current update as data, and undo records. With it any process of
// the host can finish the dead rank's update, bit for bit.
//
// Only the rank writes, and after its end the process that adopts it (adoption.h). A process may be killed between any two stores. Each
// moment is therefore one of these rows (k: the step):
//
//   recorded  begun  finished  a lane's progress   rows and states            after a death
//   k-1       k-1    k-1       any                 of step k-1                step k is run again
//   k         k-1    k-1       any                 of step k-1                run again, unless every rank has recorded k: then finished
//   k         k      k-1       2 * position        of step k before the       the lane continues at `position`
//                                                  lane's position, behind
//                                                  it of step k-1
//   k         k      k-1       2 * position + 1    as above, but the chunk    the undo record is copied back, then the lane continues
//                                                  there is torn
//   k         k      k         any                 of step k                  none: the update is complete
//
// The order of stores in a step:
//   1. gradients or new values, and items, then `recorded`; the rank waits until every rank's control word has k
//   2. all lanes, then `begun`
//   3. in each lane per chunk: the undo record, odd progress, the chunk, even progress
//   4. counters of updates, then `finished`
// A kill keeps every store before it in program order, and none after it. So only the compiler must keep this order (release stores and
// signal fences).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/kernels/adam.h"
#include "fsdp/kernels/sgd.h"
#include "fsdp/layout/layout.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

class StepRecord {
 public:
  static constexpr std::uint32_t kMaxLanes = 64;  // threads of an update
  static constexpr std::size_t kChunk = 192;      // elements between two stores of progress; 512 cost three times as much (measured)
  static constexpr std::size_t kMaxNameBytes = 160;

  // A place in shared memory.
  struct Place {
    std::uint32_t memory = 0;  // 0: none, 1: the record, 2 + u: the arena of unit u, or the memory units()[u]
    std::uint64_t offset = 0;
  };
  // One array that belongs to the rank's shard of a parameter: "param", "grad", "step" (its number of updates, one fp32), or a state. The
  // new values of an array that a step only copies are "new:" and its name.
  struct Array {
    char name[24];
    std::uint32_t unit, parameter;
    DType dtype;
    Place place;
    Piece piece;  // its elements, as a part of the whole parameter
  };
  // The arena of a unit: its key at the node, and its size. Behind the arenas: other memories in which arrays lie (shared_arrays.h).
  struct Unit {
    char key[kMaxNameBytes];
    std::uint64_t bytes;
  };
  // The update of one shard by a kernel, as data: `step`, the arrays of Shard::at, and the kernel's options. kCopy copies the bits of at[1]
  // to at[0].
  struct Item {
    enum class Kernel : std::uint32_t { kAdam, kSgd, kCopy } kernel;
    std::int64_t step;
    Adam adam;
    Sgd sgd;
    std::array<DType, kMaxArrays> dtypes;
    std::array<Place, kMaxArrays> at;
    std::uint64_t first;  // position of its first element, counted over all items
    std::uint64_t numel;
    Place counter;  // receives `step`, as fp32
  };
  // The part of an update that one thread makes: positions [begin, end).
  struct alignas(64) Lane {
    std::uint64_t begin, end;
    std::atomic<std::uint64_t> progress;
  };
  struct Header {
    std::uint64_t magic, bytes;
    std::uint32_t rank, world_size, replicas, num_units, num_arrays, max_items;
    pid_t pid;                 // the process that writes
    std::uint64_t start_time;  // with the pid it identifies the process (runtime/process/process.h)
    std::uint32_t num_items, num_lanes;
    std::atomic<std::uint64_t> usable;  // 0 before the first set_usable(), and while states are written here: they are torn meanwhile
    std::atomic<std::uint64_t> recorded, begun, finished;
  };

  struct UnitSpec {  // a unit's arena, or another memory of the node in which arrays lie
    std::string key;
    std::size_t bytes;
  };
  struct ArraySpec {
    std::string name;
    std::uint32_t unit, parameter;
    DType dtype;
    Piece piece;
    std::optional<std::size_t> in_arena = {};  // offset in an arena; without one the array lies in the record
    std::optional<std::uint32_t> arena = {};   // index in Spec::units of that arena; default: the array's unit
  };
  struct Spec {
    int rank = 0;
    Grid grid{1};
    std::uint64_t step = 0;       // steps that are complete already
    std::vector<UnitSpec> units;  // the arenas by unit, then the other memories
    std::vector<ArraySpec> arrays;
  };
  // InvalidArgument for a name that is too long.
  static Result<std::size_t> bytes_for(const Spec& spec);
  // Lays a record out in zeroed memory of bytes_for(spec) bytes. It is unusable until set_usable().
  static StepRecord make(std::span<std::byte> memory, const Spec& spec);
  // A record that another process has made. DataLoss: the memory holds none, or one that refers to places outside of it.
  static Result<StepRecord> open(std::span<std::byte> memory);

  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  std::span<Unit> units() const;
  std::span<Array> arrays() const;
  // True for an array that a step fills, and that has no meaning between two steps: a gradient, or new values.
  static bool of_step(std::string_view name);
  std::span<Item> items() const;  // the items of the current update
  Item& item(std::size_t index) const;
  Lane& lane(std::size_t index) const;
  std::byte* undo(std::size_t lane) const;
  void set_usable(bool usable) const { header().usable.store(usable ? 1 : 0, std::memory_order_release); }

  // DataLoss if the current update refers to places outside of the record and its arenas. For an update that is to be continued.
  Result<void> check_items() const;

  // The address of a place; `arenas`: this process's mappings, by unit.
  std::byte* at(const Place& place, std::span<const std::span<std::byte>> arenas) const;
  // The place of an address, the reverse of at(). Internal: the bytes lie in none of these memories.
  Result<Place> place_of(const std::byte* address, std::size_t bytes, std::span<const std::span<std::byte>> arenas) const;

 private:
  explicit StepRecord(std::span<std::byte> memory) : memory_(memory) {}
  bool fits(const Place& place, std::uint64_t numel, DType dtype) const;
  std::span<std::byte> memory_;
};

}  // namespace shoal::fsdp
