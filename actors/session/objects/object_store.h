// The large values of this process: those made here, those received, and those spilled to files. Any thread, unless noted.
//
// All processes of a node share one limit, and write their usage on the usage board (runtime/shm/usage_board.h). A process that would
// exceed the limit gives back memory without readers, then spills its own unused values, least recently used first. Then it asks the
// others, through the node, to do the same. A separate thread serves these requests, never the loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/value/value_memory.h"
#include "runtime/core/id.h"
#include "runtime/loop/side_thread.h"
#include "runtime/shm/segment_pool.h"
#include "runtime/shm/usage_board.h"

namespace shoal::actors {

class ObjectStore final : public ValueMemory {
 public:
  struct Place {
    runtime::Mapping membership_page;
    std::size_t member = 0;
    std::string folder;                                     // the folder of spilled files
    std::function<void(std::uint64_t bytes)> request_room;  // asks the other processes to make room
    // Called for a published value that has moved into a file: the node then uses the file as well.
    std::function<void(const ObjectKey& object, Result<Fd> file)> moved;
    std::function<bool()> interrupted = {};  // polled while waiting for room; true ends the wait
    // How long to wait while the other processes free nothing.
    std::chrono::steady_clock::duration patience = std::chrono::seconds(10);
    // How long to wait while the others free memory, but take it again.
    std::chrono::steady_clock::duration longest = std::chrono::minutes(2);
  };
  ObjectStore() = default;
  explicit ObjectStore(runtime::SegmentPool::Options pool) : pool_(pool) {}
  ~ObjectStore() override;

  // Applies the node's limit from now on; `place` is this process's place on the usage board.
  void join(Place place);
  // As ValueMemory::fill. Returns ResourceExhausted/ObjectStoreFull if memory and disk have no room, Cancelled/Interrupted if a signal
  // ended the wait for room. Not on the loop, where it must not wait.
  Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override;
  void keeps(const std::shared_ptr<SharedMemory>& memory) override;
  // The memory for values that are made on the loop: exceeds the limit instead of waiting for room.
  ValueMemory& at_once() { return at_once_; }
  // All large values of this process.
  std::vector<std::shared_ptr<SharedMemory>> all();
  // In a forked child: does not reuse the parent's memory, and reports nothing.
  void abandon_after_fork();
  // To be called when another process of the node needs `bytes`: the keeper then frees kept memory, and spills values.
  void wanted(std::uint64_t bytes);

 private:
  struct AtOnce final : ValueMemory {
    explicit AtOnce(ObjectStore& s) : store(s) {}
    Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override { return store.filled(bytes, parts); }
    void keeps(const std::shared_ptr<SharedMemory>& memory) override { store.keeps(memory); }
    ObjectStore& store;
  };
  Result<Fd> filled(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts);
  void keep();
  void start_keeper();
  bool over(std::uint64_t bytes) const;
  class MakingRoom;  // makes room for one value
  std::uint64_t spill(std::uint64_t bytes, const std::function<bool()>& stop);
  void notify_waiting();

  runtime::SegmentPool pool_;
  AtOnce at_once_{*this};
  std::optional<Place> place_;
  std::shared_ptr<const runtime::Mapping> words_;  // the usage board's memory
  std::optional<runtime::UsageBoard> usage_board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<SharedMemory>> kept_;
  std::size_t prune_at_ = 64;
  std::optional<Error> no_file_;  // why the last spill failed
  std::uint64_t wanted_ = 0;
  bool ending_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::mutex spilling_;                          // held by the spilling thread
  std::atomic<std::thread::id> spills_ = {};     // the spilling thread
  std::unique_ptr<runtime::SideThread> keeper_;  // started with the first memory that the pool keeps
};

}  // namespace shoal::actors
