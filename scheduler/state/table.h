// A map that knows what was changed in it since somebody last asked: what has to be kept, and nothing can be forgotten by accident.
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

  // A new row, or the one that is there.
  Row& add(const Id& id) {
    touch(id);
    return rows_[id];
  }
  // To change what has to be kept.
  Row& edit(const Id& id) {
    touch(id);
    return rows_.at(id);
  }
  // To change only what a head that starts again finds out anew: what is free, who is away.
  Row& scratch(const Id& id) {
    if (watched_) touched_.insert(id);
    return rows_.at(id);
  }
  void erase(const Id& id) {
    if (rows_.erase(id) > 0) touch(id);
  }
  // As it was kept: nothing to keep.
  Row& restore(const Id& id) {
    if (watched_) touched_.insert(id);
    return rows_[id];
  }

  bool changed() const { return !changed_.empty(); }
  std::set<Id> take_changed() { return std::exchange(changed_, {}); }
  // It was taken, and could not be kept.
  void change_again(const Id& id) { changed_.insert(id); }

  // For what is derived from the rows: whose rows may be others than when it was last asked, kept or not.
  void watch() { watched_ = true; }
  std::set<Id> take_touched() const { return std::exchange(touched_, {}); }

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
