// The references to objects of the node that this process has or gives away, told to the node in batches.
//
// A reference counts from the first time it leaves the process it was made in (Session::publish): most never do, and cost nothing. Whoever
// sends one on counts it for the receiver, before the message; what this process was given so (received) it takes off when the last of its
// holds is gone. See storage/reference_table.h for the node's side. Any thread, but for what is said to be the loop's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actors/value/value.h"

namespace shoal::actors {

class References;
// What is done with a value that has come from elsewhere.
void arrived(Value& value, References& references, ValueMemory& memory);

class References {
 public:
  struct Change {
    ObjectKey object;
    WorkerId holder;  // 0: this process
    std::int64_t by = 0;
    NodeId holder_node = {};  // 0: this one
  };
  // `wake` is called, in any thread, when there is something to tell: flush() is to be called on the loop then. `tell` sends it.
  References(std::function<void()> wake, std::function<void(std::vector<Change>)> tell);
  ~References();
  References(const References&) = delete;
  References& operator=(const References&) = delete;

  // As long as it lives, so do these objects. It may outlive this, and be copied into a child that was forked: then it does nothing.
  std::shared_ptr<const void> hold(const std::vector<ObjectKey>& objects);
  // These came with something that was sent here: their sender has counted them for this process.
  std::shared_ptr<const void> received(const std::vector<ObjectKey>& objects);
  // A value goes to another process, of that node. Loop only, before it is sent.
  void sending(const Value& value, WorkerId to, NodeId node);
  // Tells what is to be told. Loop only, before anything is sent of which the node is to know this.
  void flush();

 private:
  struct State;
  struct Hold;
  std::shared_ptr<const void> taken(const std::vector<ObjectKey>& objects, bool counted);

  const std::shared_ptr<State> state_;
  const std::function<void(std::vector<Change>)> tell_;
};

}  // namespace shoal::actors
