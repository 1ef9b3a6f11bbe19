// Parts of this node's objects, for the nodes that read them: each is read beside the loop, one at a time for each connection, and only
// while that one takes what was sent. So a node that sends much hears and answers everybody else as soon as ever. Loop thread only.
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

class Parts {
 public:
  // Does `work`, on whatever thread, then `then` on the loop.
  using Aside = std::function<void(std::function<void()> work, std::function<void()> then)>;
  struct Options {
    Aside aside;                             // empty: at once
    std::size_t high_water_bytes = 4 << 20;  // in a connection's queue: what comes next waits until it is empty
    std::uint64_t most_bytes = 8 << 20;      // of a part
  };
  // What is to be sent: `about`, with these bytes behind it.
  struct Part {
    Fd memory;
    std::uint64_t offset = 0, bytes = 0;
    Bytes about;
  };
  struct Asked {
    std::function<Result<Part>()> part;  // once it is its turn
    runtime::Responder responder;
    bool soon = false;  // before those that are not
  };
  // `queued`: the bytes that wait in the connection of that number.
  Parts(runtime::Clock& clock, Options options, std::function<std::size_t(std::uint64_t connection)> queued)
      : clock_(clock), options_(std::move(options)), queued_(std::move(queued)) {}
  ~Parts() { *alive_ = false; }

  void ask(std::uint64_t connection, Asked asked);
  // Its queue is empty.
  void drained(std::uint64_t connection);
  // What it asked for is given up.
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
