// Reads parts of this node's objects for other nodes. For each connection, one part is read at a time, beside the loop, and only while the
// connection's queue is below the high-water mark. So a node that sends much stays responsive. Loop thread only.
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
  // Runs `work` in any thread, then `then` on the loop.
  using Aside = std::function<void(std::function<void()> work, std::function<void()> then)>;
  struct Options {
    Aside aside;  // empty: both run at once, on the loop
    // Bytes in a connection's queue, above which further parts wait until the queue is empty.
    std::size_t high_water_bytes = 4 << 20;
    std::uint64_t most_bytes = 8 << 20;  // limit of one part
  };
  // An answer to send: the body `about`, with these bytes of `memory` as payload.
  struct Part {
    Fd memory;
    std::uint64_t offset = 0, bytes = 0;
    Bytes about;
  };
  struct Request {
    std::function<Result<Part>()> part;  // called when it is the request's turn
    runtime::Responder responder;
    bool soon = false;  // comes before requests that are not `soon`
  };
  // `queued` returns the bytes in the queue of a connection.
  ChunkSender(runtime::Clock& clock, Options options, std::function<std::size_t(std::uint64_t connection)> queued)
      : clock_(clock), options_(std::move(options)), queued_(std::move(queued)) {}
  ~ChunkSender() { *alive_ = false; }

  void enqueue(std::uint64_t connection, Request request);
  // To be called when the queue of the connection is empty.
  void drained(std::uint64_t connection);
  // Drops the requests that came over a connection, which is closed.
  void closed(std::uint64_t connection) { connections_.erase(connection); }

 private:
  struct Connection {
    std::deque<Request> soon, later;
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
