#include "actors/session/references/streams.h"

#include <fmt/format.h>

namespace shoal::actors {

Streams::Id Streams::open() {
  streams_[next_id_];
  return next_id_++;
}

void Streams::end(const Stream& stream, std::uint64_t index, const runtime::Promise<Value>& item) {
  if (stream.items.upper_bound(index) != stream.items.end()) {
    item.set(fail(data_loss(fmt::format("item {} of the stream could not be read when it arrived", index)).with_reason("ItemLost")));
  } else {
    item.set(fail(unavailable("the stream has no more items").with_reason("StreamOver")));
  }
}

void Streams::follow(Id id, const runtime::Future<Value>& answer) {
  answer.then([this, alive = alive_, id](const Result<Value>&) {
    const auto it = *alive ? streams_.find(id) : streams_.end();
    if (!*alive || it == streams_.end()) return;
    it->second.over = true;
    const auto awaited = it->second.items.find(it->second.next);
    if (awaited != it->second.items.end())
      // If the item was received, end() has no effect.
      end(it->second, it->second.next, runtime::Promise<Value>(awaited->second));
  });
}

runtime::Future<Value> Streams::next(Id id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) {
    const runtime::Promise<Value> none;
    end({}, 0, none);
    return none.future();
  }
  Stream& s = it->second;
  const auto item = s.items[s.next];
  if (s.over) end(s, s.next, item);
  return item.future();
}

void Streams::take(Id id) {
  const auto it = streams_.find(id);
  if (it != streams_.end()) it->second.items.erase(it->second.next++);
}

void Streams::arrived(Id id, std::uint64_t index, Result<Value> value) {
  const auto it = streams_.find(id);
  if (it == streams_.end() || index < it->second.next || it->second.over) return;
  const auto item = it->second.items[index];
  item.set(std::move(value));
}

}  // namespace shoal::actors
