#include "storage/replica_table.h"

#include <algorithm>

namespace shoal::storage {

bool ReplicaTable::wanted(Object object, WorkerId by) {
  const auto [it, is_new] = replicas_.try_emplace(object);
  it->second.wanted_by.insert(by);
  if (is_new) it->second.transfer = next_transfer_++;
  return is_new;
}

std::optional<std::uint64_t> ReplicaTable::transfer(Object object) const {
  const auto it = replicas_.find(object);
  return it == replicas_.end() ? std::nullopt : std::optional(it->second.transfer);
}

void ReplicaTable::begun(Object object, std::uint64_t bytes, std::uint64_t arrived, std::vector<Object> contains) {
  const auto it = replicas_.find(object);
  if (it == replicas_.end()) return;
  Replica& r = it->second;
  r.bytes = bytes;
  r.requested = r.arrived = std::min(arrived, bytes);
  r.contains = std::move(contains);
  if (r.requested < bytes) homes_[object.home].begun[r.transfer] = object;
}

std::vector<ReplicaTable::Piece> ReplicaTable::next() {
  std::vector<Piece> out;
  for (auto& [node, home] : homes_) {
    while (!home.begun.empty() && home.under_way < options_.max_under_way) {
      const auto [number, object] = *home.begun.begin();
      Replica& r = replicas_.at(object);
      const Piece piece{object, number, r.requested, std::min(options_.piece_bytes, *r.bytes - r.requested)};
      r.requested += piece.bytes;
      if (r.requested == *r.bytes) home.begun.erase(number);
      home.under_way += piece.bytes;
      out.push_back(piece);
    }
  }
  return out;
}

// If its transfer was given up, the piece only stops counting as under way.
bool ReplicaTable::arrived(const Piece& piece) {
  homes_[piece.object.home].under_way -= piece.bytes;
  forget_if_idle(piece.object.home);
  const auto it = replicas_.find(piece.object);
  if (it == replicas_.end() || it->second.transfer != piece.transfer) return false;
  it->second.arrived += piece.bytes;
  return it->second.arrived == *it->second.bytes;
}

void ReplicaTable::forget_if_idle(NodeId home) {
  const auto it = homes_.find(home);
  if (it != homes_.end() && it->second.begun.empty() && it->second.under_way == 0) homes_.erase(it);
}

std::uint64_t ReplicaTable::under_way() const {
  std::uint64_t out = 0;
  for (const auto& [node, home] : homes_) out += home.under_way;
  return out;
}

bool ReplicaTable::complete(Object object) const {
  const auto it = replicas_.find(object);
  return it != replicas_.end() && it->second.bytes && it->second.arrived == *it->second.bytes;
}

bool ReplicaTable::is_wanted(Object object, WorkerId by) const {
  const auto it = replicas_.find(object);
  return it != replicas_.end() && it->second.wanted_by.contains(by);
}

std::vector<ReplicaTable::Object> ReplicaTable::contained(Object object) const {
  const auto it = replicas_.find(object);
  return it == replicas_.end() ? std::vector<Object>() : it->second.contains;
}

bool ReplicaTable::let_go(Object object, WorkerId by) {
  const auto it = replicas_.find(object);
  if (it == replicas_.end() || it->second.wanted_by.erase(by) == 0 || !it->second.wanted_by.empty()) return false;
  drop(object);
  return true;
}

void ReplicaTable::drop(Object object) {
  const auto it = replicas_.find(object);
  if (it == replicas_.end()) return;
  if (const auto home = homes_.find(object.home); home != homes_.end()) {
    home->second.begun.erase(it->second.transfer);
    forget_if_idle(object.home);
  }
  replicas_.erase(it);
}

template <class Which>
std::vector<ReplicaTable::Object> ReplicaTable::take(const Which& which) {
  std::vector<Object> out;
  for (auto& [object, replica] : replicas_) {
    if (which(object, replica)) out.push_back(object);
  }
  for (const Object& object : out) drop(object);
  return out;
}

std::vector<ReplicaTable::Object> ReplicaTable::worker_gone(WorkerId worker) {
  return take([&](const Object&, Replica& r) { return r.wanted_by.erase(worker) > 0 && r.wanted_by.empty(); });
}

std::vector<ReplicaTable::Object> ReplicaTable::node_gone(NodeId home) {
  return take([&](const Object& o, const Replica&) { return o.home == home; });
}

std::vector<ReplicaTable::Object> ReplicaTable::end_job(JobId job) {
  return take([&](const Object& o, const Replica&) { return o.job == job; });
}

std::optional<ReplicaTable::Object> ReplicaTable::find(ObjectId id) const {
  for (const auto& [object, r] : replicas_) {
    if (object.id == id) return object;
  }
  return std::nullopt;
}

}  // namespace shoal::storage
