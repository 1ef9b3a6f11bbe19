// Items of the calls that this process made and that yield: each comes over the call's connection, before its answer, and is kept here
// until it is taken. A call that is made again yields all of them again: those that are here already, or were taken, are dropped. Loop
// only.
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
  // Before the call is made.
  Id open();
  // `done`: the call's answer, behind which nothing comes.
  void follow(Id stream, const runtime::Future<Value>& done);
  // The item that is to be taken next. When there is none any more it fails as Unavailable/StreamOver, once the call is done; as
  // DataLoss/ItemLost when there are some behind it.
  runtime::Future<Value> next(Id stream);
  void take(Id stream);
  // Nobody takes any more: what is here is dropped, and what comes.
  void close(Id stream) { streams_.erase(stream); }
  void arrived(Id stream, std::uint64_t index, Result<Value> item);

 private:
  struct Stream {
    std::map<std::uint64_t, runtime::Promise<Value>> items;  // that are here, or asked for; none before `next`
    std::uint64_t next = 0;
    bool over = false;
  };
  // Of one that is not here, and will not come.
  static void end(const Stream& stream, std::uint64_t index, const runtime::Promise<Value>& item);
  std::map<Id, Stream> streams_;
  Id next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

 public:
  ~Streams() { *alive_ = false; }
};

}  // namespace shoal::actors
