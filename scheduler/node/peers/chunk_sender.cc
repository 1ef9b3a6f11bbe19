#include "scheduler/node/peers/chunk_sender.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace shoal::scheduler {

namespace {

Result<Bytes> read_part(const ChunkSender::Part& part) {
  auto out = runtime::allocate(part.bytes);
  if (!out) return fail(resource_exhausted("the node has no memory for a part of an object"));
  for (std::size_t at = 0; at < part.bytes;) {
    const ssize_t n = pread(part.memory.get(), out->data() + at, part.bytes - at, static_cast<off_t>(part.offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(data_loss("the object cannot be read"));
    at += static_cast<std::size_t>(n);
  }
  return *std::move(out);
}

}  // namespace

void ChunkSender::enqueue(std::uint64_t connection, Request request) {
  Connection& c = connections_[connection];
  auto& behind = request.soon ? c.soon : c.later;
  behind.push_back(std::move(request));
  next(connection);
}

void ChunkSender::drained(std::uint64_t connection) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  if (!it->second.reading && it->second.soon.empty() && it->second.later.empty()) return static_cast<void>(connections_.erase(it));
  next(connection);
}

// Begins the next part in a later turn of the loop, since the caller may be in the middle of a change.
void ChunkSender::next(std::uint64_t connection) {
  Connection& c = connections_.at(connection);
  if (c.reading || (c.soon.empty() && c.later.empty()) || queued_(connection) >= options_.high_water_bytes) return;
  c.reading = true;
  c.next = clock_.after(runtime::Duration::zero(), [this, connection] {
    Connection& c = connections_.at(connection);
    auto& from = c.soon.empty() ? c.later : c.soon;
    Request request = std::move(from.front());
    from.pop_front();
    auto part = request.part();
    if (part) part->bytes = std::min(part->bytes, options_.most_bytes);
    if (part) return read(connection, std::move(request.responder), *std::move(part));
    c.reading = false;
    request.responder.fail(part.error());
    drained(connection);
  });
}

void ChunkSender::read(std::uint64_t connection, runtime::Responder responder, Part part) {
  struct Reading {
    runtime::Responder responder;
    Part part;
    Result<Bytes> bytes;
  };
  const auto reading = std::make_shared<Reading>(Reading{std::move(responder), std::move(part), Bytes()});
  const auto work = [reading] { reading->bytes = read_part(reading->part); };
  const auto then = [this, alive = alive_, connection, reading] {
    if (!*alive) return;
    if (const auto it = connections_.find(connection); it != connections_.end()) it->second.reading = false;
    if (reading->bytes) {
      reading->responder.reply({std::move(reading->part.about), *std::move(reading->bytes), {}});
    } else {
      reading->responder.fail(reading->bytes.error());
    }
    drained(connection);
  };
  if (options_.aside) return options_.aside(work, then);
  work();
  then();
}

}  // namespace shoal::scheduler
