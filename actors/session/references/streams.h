// Items of yielding calls that this process made. They arrive over the call's connection before its answer, and wait here until they are
// taken. A repeated call yields all items again, and those received before are dropped. Loop only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "actors/value/value.h"
#include "runtime/loop/future.h"

namespace shoal::actors {

class Streams {
 public:
  using Id = std::uint64_t;
  // Makes a stream. To be called before the yielding call is made.
  Id open();
  // Ties the stream to `answer`, the call's answer, after which no items come.
  void follow(Id stream, const runtime::Future<Value>& answer);
  // The next item, which may not have arrived yet. If the call is done, fails as Unavailable/StreamOver after the last item, and as
  // DataLoss/ItemLost if only later items arrived.
  runtime::Future<Value> next(Id stream);
  void take(Id stream);
  // Drops the stream's items, those received and those still to come.
  void close(Id stream) { streams_.erase(stream); }
  void arrived(Id stream, std::uint64_t index, Result<Value> item);

 private:
  struct Stream {
    // Items that were received or requested, by index from `next` on.
    std::map<std::uint64_t, runtime::Promise<Value>> items;
    std::uint64_t next = 0;
    bool over = false;
  };
  // Fails the promise of an item that was not received before the call's end.
  static void end(const Stream& stream, std::uint64_t index, const runtime::Promise<Value>& item);
  std::map<Id, Stream> streams_;
  Id next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

 public:
  ~Streams() { *alive_ = false; }
};

}  // namespace shoal::actors
