// Items for another node, delivered in order and exactly once, also when connections break. One numbered message of items is under way at a
// time. It is sent again unchanged until it is acknowledged; the receiver skips numbers that it has seen. Pure: the caller sends.
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
  // Items that are in no message yet. The caller may merge them.
  std::deque<Item>& waiting() { return waiting_; }
  // Returns the message to send now, or nullptr while one is under way or no item waits.
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
  // The connection broke before the acknowledgement: next() returns the same message again.
  void lost() { under_way_ = false; }

 private:
  const std::size_t max_items_;  // most items in one message
  std::deque<Item> waiting_;
  Parcel parcel_;
  bool under_way_ = false;
};

// The receiver's side, for all senders.
class Inbox {
 public:
  // Returns true if the message arrives for the first time.
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
