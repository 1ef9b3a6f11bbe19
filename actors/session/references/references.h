// References to the node's objects that this process holds or passes on, reported to the node in batches.
//
// A reference counts from the first time that it leaves its process (ObjectClient::publish); most never do, and cost nothing. The sender
// counts a reference for the receiver before it sends the message. The receiver takes that count back when it holds the reference no more.
// storage/reference_table.h is the node's side. Any thread, unless noted.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actors/value/value.h"

namespace shoal::actors {

class References;
// Registers the references in a value received from another process, and its memory.
void arrived(Value& value, References& references, ValueMemory& memory);

class References {
 public:
  struct Change {
    ObjectKey object;
    WorkerId holder;  // 0: this process
    std::int64_t by = 0;
    NodeId holder_node = {};  // 0: this node
  };
  // `wake` is called, in any thread, when there are new changes; flush() must then be called on the loop. `report` sends the changes to the
  // node.
  References(std::function<void()> wake, std::function<void(std::vector<Change>)> report);
  ~References();
  References(const References&) = delete;
  References& operator=(const References&) = delete;

  // Returns a reference that keeps these objects as long as it lives. It may outlive this object; in a forked child it does nothing.
  std::shared_ptr<const void> hold(const std::vector<ObjectKey>& objects);
  // As hold(), for objects in a received message: its sender has counted them for this process.
  std::shared_ptr<const void> received(const std::vector<ObjectKey>& objects);
  // Counts the references in a value for the process `to` on `node`. Loop only, before the value is sent to it.
  void sending(const Value& value, WorkerId to, NodeId node);
  // Sends the changes to the node. Loop only, before any message that depends on them.
  void flush();

 private:
  struct State;
  struct Hold;
  std::shared_ptr<const void> taken(const std::vector<ObjectKey>& objects, bool counted);

  const std::shared_ptr<State> state_;
  const std::function<void(std::vector<Change>)> report_;
};

}  // namespace shoal::actors
