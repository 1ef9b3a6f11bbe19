// The memory of the large values that this process makes. Any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "actors/value/value_memory.h"
#include "runtime/loop/side_thread.h"
#include "runtime/shm/segment_pool.h"

namespace shoal::actors {

class ObjectStore final : public ValueMemory {
 public:
  ObjectStore() = default;
  ~ObjectStore() override;

  Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override;

 private:
  void keep();

  runtime::SegmentPool pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::unique_ptr<runtime::SideThread> keeper_;  // from the first memory on that the pool keeps
};

}  // namespace shoal::actors
