// The memory of the large values of this process: what it fills, what it got from others, and what of that lies in files because memory was
// short. Any thread, unless said otherwise.
//
// All processes of a node share one limit. Each writes on a board (runtime/shm/usage_board.h) what it has filled; who would go beyond the
// limit makes room: gives back what nobody reads, moves its own values that nobody looks at into files, those used longest ago first, then
// asks the others, through the node, to do the same. A thread does that for others; nothing of it happens on the loop.
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
    runtime::Mapping board;
    std::size_t member = 0;
    std::string folder;                                                       // for files
    std::function<void(std::uint64_t bytes)> ask_others;                      // to make room
    std::function<void(const ObjectKey& object, Result<Fd> file)> moved;      // one that the node keeps, too
    std::function<bool()> interrupted = {};                                   // whoever waits for room is to give up
    std::chrono::steady_clock::duration patience = std::chrono::seconds(10);  // with others that give nothing back
    std::chrono::steady_clock::duration longest = std::chrono::minutes(2);    // with others that do, and take it themselves
  };
  ObjectStore() = default;
  explicit ObjectStore(runtime::SegmentPool::Options pool) : pool_(pool) {}
  ~ObjectStore() override;

  // From now on there is a limit.
  void join(Place place);
  // ResourceExhausted/ObjectStoreFull, Cancelled/Interrupted. Not on the loop: it may wait for room.
  Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override;
  void keeps(const std::shared_ptr<SharedMemory>& memory) override;
  // The same for the loop: beyond the limit, rather than to wait for room.
  ValueMemory& at_once() { return at_once_; }
  // What this process has of large values.
  std::vector<std::shared_ptr<SharedMemory>> all();
  // In a process that was forked: it fills nothing of its parent's again, and tells nobody anything.
  void abandon_after_fork();
  // Another process of the node wants so many bytes.
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
  Result<void> make_room(std::uint64_t bytes);
  std::uint64_t spill(std::uint64_t bytes, const std::function<bool()>& stop);
  void tell();

  runtime::SegmentPool pool_;
  AtOnce at_once_{*this};
  std::optional<Place> place_;
  std::shared_ptr<const runtime::Mapping> words_;  // of the board
  std::optional<runtime::UsageBoard> board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<SharedMemory>> kept_;
  std::size_t prune_at_ = 64;
  std::optional<Error> no_file_;  // why one could not be moved, last
  std::uint64_t wanted_ = 0;
  bool ending_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::mutex spilling_;                          // one thread at a time
  std::atomic<std::thread::id> spills_ = {};     // this one
  std::unique_ptr<runtime::SideThread> keeper_;  // from the first memory on that the pool keeps
};

}  // namespace shoal::actors
