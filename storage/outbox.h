// What is told to another node in order, each thing once, although connections break: one message is under way at a time, with a number,
// and is sent again, as it was, until it is acknowledged; the receiver passes over what it has had already. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "runtime/core/id.h"

namespace shoal::storage {

template <class Item>
class Outbox {
 public:
  explicit Outbox(std::size_t max_items) : max_items_(max_items) {}

  struct Parcel {
    std::uint64_t number = 0;
    std::vector<Item> items;
  };

  void add(Item item) { waiting_.push_back(std::move(item)); }
  std::size_t size() const { return waiting_.size() + parcel_.items.size(); }
  // What no message has yet, to be said in fewer words.
  std::deque<Item>& waiting() { return waiting_; }
  // What is to be sent now; nothing while one is under way, or there is nothing.
  const Parcel* next() {
    if (under_way_) return nullptr;
    if (parcel_.items.empty()) {
      if (waiting_.empty()) return nullptr;
      const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting_.size(), max_items_));
      parcel_ = {parcel_.number + 1, {waiting_.begin(), end}};
      waiting_.erase(waiting_.begin(), end);
    }
    under_way_ = true;
    return &parcel_;
  }
  void acknowledged() {
    under_way_ = false;
    parcel_.items.clear();
  }
  // Nobody knows whether it arrived.
  void lost() { under_way_ = false; }

 private:
  const std::size_t max_items_;  // of a message
  std::deque<Item> waiting_;
  Parcel parcel_;
  bool under_way_ = false;
};

// The receiver's side, of all that tell it something.
class Inbox {
 public:
  // Whether this is the first time that it comes.
  bool take(NodeId from, std::uint64_t number) {
    std::uint64_t& last = last_[from];
    if (number <= last) return false;
    last = number;
    return true;
  }
  void forget(NodeId from) { last_.erase(from); }
  void clear() { last_.clear(); }

 private:
  std::map<NodeId, std::uint64_t> last_;
};

}  // namespace shoal::storage
