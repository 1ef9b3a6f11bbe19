// Reads parts of this node's objects for other nodes. Each is read beside the loop, one at a time for each connection, and only while the
// connection takes what was sent. So a node that sends much stays responsive. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "runtime/core/fd.h"
#include "runtime/loop/clock.h"
#include "runtime/net/peer.h"

namespace shoal::scheduler {

class ChunkSender {
 public:
  // Runs `work` on any thread, then `then` on the loop.
  using Aside = std::function<void(std::function<void()> work, std::function<void()> then)>;
  struct Options {
    Aside aside;                             // empty: on the loop, at once
    std::size_t high_water_bytes = 4 << 20;  // in a connection's queue; beyond it, parts wait until it is empty
    std::uint64_t most_bytes = 8 << 20;      // limit of one part
  };
  // A message to send: `about`, with these bytes behind it.
  struct Part {
    Fd memory;
    std::uint64_t offset = 0, bytes = 0;
    Bytes about;
  };
  struct Asked {
    std::function<Result<Part>()> part;  // called at its turn
    runtime::Responder responder;
    bool soon = false;  // served before others
  };
  // `queued`: the bytes queued in a connection.
  ChunkSender(runtime::Clock& clock, Options options, std::function<std::size_t(std::uint64_t connection)> queued)
      : clock_(clock), options_(std::move(options)), queued_(std::move(queued)) {}
  ~ChunkSender() { *alive_ = false; }

  void ask(std::uint64_t connection, Asked asked);
  // The connection's queue is empty.
  void drained(std::uint64_t connection);
  // Drops the connection's requests.
  void closed(std::uint64_t connection) { connections_.erase(connection); }

 private:
  struct Connection {
    std::deque<Asked> soon, later;
    bool reading = false;
    runtime::Timer next;
  };
  void next(std::uint64_t connection);
  void read(std::uint64_t connection, runtime::Responder responder, Part part);

  runtime::Clock& clock_;
  const Options options_;
  const std::function<std::size_t(std::uint64_t connection)> queued_;
  std::map<std::uint64_t, Connection> connections_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
