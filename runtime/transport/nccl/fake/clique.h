// The ranks of one communicator of FakeNccl, and where their operations meet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {

// An operation as one rank calls it.
struct FakeOperation {
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kReduce, kBroadcast, kSend, kReceive } kind;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  NcclType type = 0;
  NcclOp op = 0;
  int other = -1;  // root, or the other rank of a message
  CudaStream stream = nullptr;

  bool message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  std::size_t bytes() const;
};

class FakeClique {
 public:
  FakeClique(int num_ranks, std::function<void(std::string)> violation);
  int num_ranks() const { return num_ranks_; }
  static inline std::atomic<bool> hang = false;  // true: operations find no counterpart, so they do not end

  // The parts of a communicator's operations that meet those of others. `aborted`: guarded by the clique.
  struct Member {
    int rank = 0;
    std::uint64_t num_collectives = 0;  // collectives that this member has put on its stream
    std::size_t num_running = 0;        // groups on the stream
    bool aborted = false;
  };
  // Runs operations of one group, on the stream's thread, until all have met their counterparts or the member is aborted. `first`: number
  // of the group's first collective.
  void run(Member& member, std::uint64_t first, const std::vector<FakeOperation>& operations);
  void abort(Member& member);
  std::size_t num_running(const Member& member);
  void count_running(Member& member, int by);

 private:
  struct Part {
    const FakeOperation* operation = nullptr;
    Member* member = nullptr;
    bool met = false;
  };
  struct Meeting {
    std::map<int, Part*> parts;  // by rank
    bool broken = false;
  };

  // With the mutex.
  void add(std::uint64_t number, Part& part);
  void match(int from, int to);
  void complete(Meeting& meeting);
  void report(const std::string& what);

  const int num_ranks_;
  const std::function<void(std::string)> violation_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Meeting> meetings_;
  std::map<std::pair<int, int>, std::pair<std::deque<Part*>, std::deque<Part*>>> messages_;  // by sender and receiver
};

}  // namespace shoal::runtime

// In the global namespace: NCCL's handle points to it.
struct ncclComm {
  std::shared_ptr<shoal::runtime::FakeClique> clique;
  shoal::runtime::FakeClique::Member member;
  int device = 0;
  shoal::runtime::NcclStatus state = shoal::runtime::nccl::kInProgress;
  bool connected = false, finalized = false;
  std::uint64_t number = 0, num_issued = 0, num_launched = 0;  // the number in its id; groups of calls issued, and put on the stream
  int polls = 0;                                               // polls since the last call that is in progress
  std::vector<shoal::runtime::FakeOperation> begun;            // the last group's calls, not yet on the stream
};

namespace shoal::runtime {
using FakeComm = ncclComm;
}
