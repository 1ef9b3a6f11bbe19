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
  // To be called before the call is made.
  Id open();
  // `done`: the call's answer, after which no items come.
  void follow(Id stream, const runtime::Future<Value>& done);
  // The next item. After the last one it fails as Unavailable/StreamOver, once the call is done; as DataLoss/ItemLost if only later ones
  // are here.
  runtime::Future<Value> next(Id stream);
  void take(Id stream);
  // Drops all items, here and to come.
  void close(Id stream) { streams_.erase(stream); }
  void arrived(Id stream, std::uint64_t index, Result<Value> item);

 private:
  struct Stream {
    std::map<std::uint64_t, runtime::Promise<Value>> items;  // received or requested; none before `next`
    std::uint64_t next = 0;
    bool over = false;
  };
  // For an item that is not here and will not come.
  static void end(const Stream& stream, std::uint64_t index, const runtime::Promise<Value>& item);
  std::map<Id, Stream> streams_;
  Id next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

 public:
  ~Streams() { *alive_ = false; }
};

}  // namespace shoal::actors
