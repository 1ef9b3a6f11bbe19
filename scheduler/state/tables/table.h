// A map that tracks which rows changed since the last take_changed(), so that every change is stored. The tables derive from it: only their
// transitions change rows.
#pragma once

#include <map>
#include <set>
#include <utility>

namespace shoal::scheduler {

template <class Id, class Row>
class Table {
 public:
  using const_iterator = typename std::map<Id, Row>::const_iterator;

  const_iterator begin() const { return rows_.begin(); }
  const_iterator end() const { return rows_.end(); }
  const_iterator find(const Id& id) const { return rows_.find(id); }
  const_iterator upper_bound(const Id& id) const { return rows_.upper_bound(id); }
  bool contains(const Id& id) const { return rows_.contains(id); }
  const Row& at(const Id& id) const { return rows_.at(id); }

  bool changed() const { return !changed_.empty(); }
  std::set<Id> take_changed() { return std::exchange(changed_, {}); }
  // Marks a row as changed because it could not be stored.
  void change_again(const Id& id) { changed_.insert(id); }

  // Adds a row that was loaded from the store; it is not marked as changed.
  Row& restore(const Id& id) {
    if (watched_) touched_.insert(id);
    return rows_[id];
  }

  // The rows that changed in either part since the last call, for data that depends on them. Empty without watch().
  std::set<Id> take_touched() const { return std::exchange(touched_, {}); }

 protected:
  // Adds a row, or returns the existing one.
  Row& add(const Id& id) {
    touch(id);
    return rows_[id];
  }
  // The row, for a change of its stored part (rows.h).
  Row& edit(const Id& id) {
    touch(id);
    return rows_.at(id);
  }
  // The row, for a change of the part that is not stored.
  Row& scratch(const Id& id) {
    if (watched_) touched_.insert(id);
    return rows_.at(id);
  }
  void erase(const Id& id) {
    if (rows_.erase(id) > 0) touch(id);
  }
  // Enables take_touched().
  void watch() { watched_ = true; }

 private:
  void touch(const Id& id) {
    changed_.insert(id);
    if (watched_) touched_.insert(id);
  }

  std::map<Id, Row> rows_;
  std::set<Id> changed_;
  mutable std::set<Id> touched_;
  bool watched_ = false;
};

}  // namespace shoal::scheduler
