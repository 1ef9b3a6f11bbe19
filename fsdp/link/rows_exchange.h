// Sends this rank's rows of each version to the other hosts, and receives those of its partners into this host's arenas.
//
// Each host gets a row once: its owner sends it to one rank of the host (Hosts::partner), which stores it for all. A receiver never waits:
// an owner writes version v+1 only after every rank has left version v, so no rank reads the rows that arrive.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp/link/link_model.h"
#include "fsdp/link/stream.h"

namespace shoal::fsdp {

class RowsExchange {
 public:
  // `arrived` is called after rows were stored, on the thread that calls advance().
  RowsExchange(LinkModel model, runtime::MessageLayer& layer, std::function<void()> arrived);

  // Any thread. Queues this rank's rows of a version, unit by unit. The caller leaves them unchanged until sent() is true.
  void send(std::uint64_t version, const std::vector<std::uint32_t>& order);
  // Any thread. True when all queued rows are sent.
  bool sent() const { return unsent_.load(std::memory_order_acquire) == 0; }

  // True when this rank has received all rows of the versions that its partners have entered, or can get no more of them.
  bool received() const;

  // Begins to receive from all partners. To be called before the first advance().
  void start();
  bool advance();
  // True when everything is sent to partners that have not ended.
  bool finished() const;

 private:
  struct Task {
    std::uint64_t version;
    std::uint32_t unit;
    bool unchanged;  // the receiver's rows are those of the version before
  };
  struct Lane {  // to one host
    Lane(runtime::MessageLayer& layer, int to);
    StreamSender sender;
    std::deque<Task> tasks;
    bool sending = false;
  };
  struct Header {
    std::uint64_t version;
    std::uint32_t unit, unchanged;
  };

  // The memory of a rank's rows of a unit: its pieces of all parameters.
  std::vector<std::span<std::byte>> rows_of(std::size_t unit, int rank) const;
  // Hands the first queued task to all lanes. Unchanged rows of a unit without trained parameters are not sent again. So its rows are
  // first compared with those that were sent before, a slice at a time: returns false while that is not finished.
  bool hand_out(Task& task);
  // Sends the lane's next task.
  void begin_record(Lane& lane);
  std::optional<std::vector<std::span<std::byte>>> on_header(int from, std::span<const std::byte> bytes);

  const LinkModel model_;
  runtime::MessageLayer& layer_;
  const std::function<void()> arrived_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<StreamReceiver>> receivers_;
  std::vector<Header> arriving_;                           // by rank: the record that arrives from it
  std::deque<Task> waiting_;                               // tasks that no lane has yet
  std::vector<std::optional<std::uint64_t>> sent_hashes_;  // by unit without trained parameters: hash of the rows that were sent
  // The comparison of waiting_[0] under way.
  std::vector<std::span<std::byte>> unhashed_;
  std::optional<std::uint64_t> hash_;
  std::atomic<std::uint64_t> unsent_{0};  // tasks of all lanes

  std::mutex mutex_;
  std::vector<Task> queued_;  // guarded by mutex_
};

}  // namespace shoal::fsdp
