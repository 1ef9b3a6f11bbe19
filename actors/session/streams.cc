#include "actors/session/streams.h"

#include <vector>

namespace shoal::actors {

Streams::Id Streams::open() {
  streams_[next_id_];
  return next_id_++;
}

void Streams::end(const runtime::Promise<Value>& item) { item.set(fail(unavailable("there are no more items").with_reason("StreamOver"))); }

void Streams::follow(Id id, const runtime::Future<Value>& done) {
  done.then([this, alive = alive_, id](const Result<Value>&) {
    const auto it = *alive ? streams_.find(id) : streams_.end();
    if (!*alive || it == streams_.end()) return;
    it->second.over = true;
    std::vector<runtime::Promise<Value>> asked;
    for (const auto& [k, item] : it->second.items) asked.push_back(item);
    for (const auto& item : asked) end(item);  // those that are here stay as they are
  });
}

runtime::Future<Value> Streams::next(Id id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) {
    const runtime::Promise<Value> none;
    end(none);
    return none.future();
  }
  Stream& s = it->second;
  const auto item = s.items[s.next];
  if (s.over) end(item);
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
