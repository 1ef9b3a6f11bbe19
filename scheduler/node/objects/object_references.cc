#include "scheduler/node/objects/object_references.h"

namespace shoal::scheduler {

using actors::ObjectKey;

ObjectReferences::ObjectReferences(const ObjectNames& names, PeerNodes& peer_nodes, storage::MemoryTable& memory, UncountedBytes& uncounted,
                                   std::size_t max_references, Events events)
    : names_(names),
      peer_nodes_(peer_nodes),
      memory_(memory),
      uncounted_(uncounted),
      events_(std::move(events)),
      references_(max_references) {}

void ObjectReferences::count(WorkerId worker, const actors::CountObjects& count) {
  for (Change change : count.changes) {
    if (change.kind != Change::Kind::kCount) continue;
    if (!change.holder) change.holder = worker;
    apply(change, names_.self());
  }
}

void ObjectReferences::reported(NodeId from, const actors::CountObjects& counts) {
  if (peer_nodes_.gone(from) != nullptr || !inbox_.take(from, counts.number)) return;
  for (const Change& change : counts.changes) apply(change, from);
}

void ObjectReferences::apply(const Change& change, NodeId from) {
  const NodeId node = change.holder_node ? change.holder_node : from;
  switch (change.kind) {
    case Change::Kind::kCount:
      return change_count(change.object, change.holder, node, change.by);
    case Change::Kind::kCountContents:
      return change_contents(names_.object(change.object), change.holder, node);
    case Change::Kind::kWatch:
      if (events_.has_worker(change.holder)) {
        watched_[change.holder].insert(from);
      } else {
        peer_nodes_.send(from, {{}, change.holder, 0, {}, Change::Kind::kGone});
      }
      return;
    case Change::Kind::kGone:
      elsewhere_.erase(change.holder);
      return free(references_.worker_gone(change.holder));
  }
}

void ObjectReferences::change_count(const ObjectKey& key, WorkerId holder, NodeId node, std::int64_t by) {
  const Object object = names_.object(key);
  const bool local = node == names_.self();
  if (object.home) {
    if (by < 0 && local) events_.let_go(object, holder);
    return peer_nodes_.send(object.home, {key, holder, by, node, Change::Kind::kCount});
  }
  if (memory_.ended(key.job)) return;
  // A process that has ended cannot hold a reference, so nothing is counted for it.
  if (by > 0 && (local ? !events_.has_worker(holder) : peer_nodes_.gone(node) != nullptr)) return;
  if (by > 0 && !local) watch(holder, node);
  free(references_.count(object, holder, by));
}

void ObjectReferences::change_contents(const Object& object, WorkerId holder, NodeId node) {
  for (const Object& inner : references_.contained(object)) change_count(names_.key(inner), holder, node, 1);
}

void ObjectReferences::watch(WorkerId holder, NodeId node) {
  if (!elsewhere_.emplace(holder, node).second) return;
  peer_nodes_.watch(node);
  if (holder.value != node.value) peer_nodes_.send(node, {{}, holder, 0, {}, Change::Kind::kWatch});
}

void ObjectReferences::free(const storage::ReferenceTable::Freed& freed) {
  for (const Object& object : freed) {
    if (object.home) {  // no object of this node contains it any more
      peer_nodes_.send(object.home, {names_.key(object), WorkerId{names_.self().value}, -1, names_.self(), Change::Kind::kCount});
    } else {
      memory_.free(object.job, object.id);
    }
  }
  if (!freed.empty()) uncounted_.report();
}

Result<void> ObjectReferences::contain(const Object& outer, const std::vector<ObjectKey>& keys) {
  const std::vector<Object> inner = names_.objects(keys);
  // The objects of other nodes whose homes do not count this node yet.
  std::set<Object> others;
  for (const Object& object : inner) {
    if (object.home && !references_.knows(object)) others.insert(object);
  }
  auto contained = references_.contain(outer, inner);
  for (const Object& other : others) {
    if (references_.knows(other)) {
      peer_nodes_.send(other.home, {names_.key(other), WorkerId{names_.self().value}, 1, names_.self(), Change::Kind::kCount});
    }
  }
  return contained;
}

void ObjectReferences::count_contents(const Object& object, const std::vector<Object>& inner, WorkerId worker) {
  if (inner.empty() || !events_.has_worker(worker)) return;
  if (object.home) {
    peer_nodes_.send(object.home, {names_.key(object), worker, 0, names_.self(), Change::Kind::kCountContents});
  } else {
    change_contents(object, worker, names_.self());
  }
}

void ObjectReferences::drop(const Object& object) { free(references_.drop(object)); }

void ObjectReferences::worker_gone(WorkerId worker) {
  free(references_.worker_gone(worker));
  const auto nodes = watched_.extract(worker);
  if (nodes.empty()) return;
  for (const NodeId node : nodes.mapped()) peer_nodes_.send(node, {{}, worker, 0, {}, Change::Kind::kGone});
}

void ObjectReferences::end_job(JobId job) { free(references_.end_job(job)); }

std::set<NodeId> ObjectReferences::nodes() const {
  std::set<NodeId> out;
  for (const auto& [holder, node] : elsewhere_) out.insert(node);
  return out;
}

void ObjectReferences::node_gone(NodeId node) {
  for (auto it = elsewhere_.begin(); it != elsewhere_.end();) {
    if (it->second == node) {
      const WorkerId holder = it->first;
      it = elsewhere_.erase(it);
      free(references_.worker_gone(holder));
    } else {
      ++it;
    }
  }
  for (auto& [worker, nodes] : watched_) nodes.erase(node);
  inbox_.forget(node);
}

void ObjectReferences::start_anew() {
  watched_.clear();
  inbox_.clear();
}

}  // namespace shoal::scheduler
