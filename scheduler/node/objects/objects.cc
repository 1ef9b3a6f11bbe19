#include "scheduler/node/objects/objects.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>

#include <fmt/format.h>

#include "runtime/shm/memory.h"
#include "runtime/shm/spill_file.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::ObjectKey;
using actors::ObjectRef;
using actors::to_bytes;
using runtime::Message;
using storage::ReplicaTable;

namespace {

constexpr std::chrono::seconds kStoodStill(1);
constexpr std::uint64_t kSpilledAhead = 256u << 20, kSpilledAtMost = std::uint64_t{8} << 30;

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

Error freed_meanwhile() { return unavailable("this object was freed while it was read").with_reason("ObjectFreed"); }

Error no_more() { return unavailable("this node has no reference to this object any more").with_reason("ObjectLetGo"); }

}  // namespace

Objects::Objects(runtime::Clock& clock, runtime::Network& network, storage::MemoryTable& memory, const runtime::Log& log, Options options,
                 PeerNodes::Options peer_nodes, std::function<runtime::Peer*()> head, Events events)
    : clock_(clock),
      memory_(memory),
      log_(log),
      options_(options),
      events_(std::move(events)),
      replicas_(options.replicas),
      parts_(clock, options.parts, events_.queued),
      peer_nodes_(clock, network, log, peer_nodes, {std::move(head), [this](NodeId node, const Error& why) { node_gone(node, why); }}) {}

void Objects::start_as(NodeId self) {
  const NodeId before = std::exchange(self_, self);
  if (before) {
    const Error why = unavailable("this node was declared dead, and joined again as another node").with_reason("OwnerDied");
    std::set<NodeId> nodes;
    for (const auto& [holder, node] : elsewhere_) nodes.insert(node);
    for (const NodeId node : nodes) node_gone(node, why);
    for (;;) {
      const auto left = replicas_.first();
      if (!left) break;
      for (const Object& object : replicas_.node_gone(left->home)) release(object, why);
    }
    watched_.clear();
    inbox_.clear();
  }
  peer_nodes_.start_as(self);
}

Objects::Object Objects::own(const ObjectKey& key) const { return {key.job, key.id, key.home == self_ ? NodeId() : key.home}; }

ObjectKey Objects::key(const Object& object) const { return {object.job, object.id, object.home ? object.home : self_}; }

std::vector<ObjectKey> Objects::keys(const std::vector<Object>& objects) const {
  std::vector<ObjectKey> out;
  for (const Object& object : objects) out.push_back(key(object));
  return out;
}

// ---- references
// ------------------------------------------------------------------------------------------------------------

void Objects::count(WorkerId worker, const actors::CountObjects& count) {
  for (Change change : count.changes) {
    if (change.kind != Change::Kind::kCount) continue;
    if (!change.holder) change.holder = worker;
    apply(change, self_);
  }
}

void Objects::reported(NodeId from, const actors::CountObjects& news) {
  if (peer_nodes_.gone(from) != nullptr || !inbox_.take(from, news.number)) return;
  for (const Change& change : news.changes) apply(change, from);
}

void Objects::apply(const Change& change, NodeId from) {
  const NodeId node = change.holder_node ? change.holder_node : from;
  switch (change.kind) {
    case Change::Kind::kCount:
      return count(change.object, change.holder, node, change.by);
    case Change::Kind::kCountContents:
      return count_contents(own(change.object), change.holder, node);
    case Change::Kind::kWatch:
      if (events_.has_worker(change.holder)) {
        watched_[change.holder].insert(from);
      } else {
        peer_nodes_.tell(from, {{}, change.holder, 0, {}, Change::Kind::kGone});
      }
      return;
    case Change::Kind::kGone:
      elsewhere_.erase(change.holder);
      return free(references_.worker_gone(change.holder));
  }
}

void Objects::count(const ObjectKey& object, WorkerId holder, NodeId node, std::int64_t by) {
  const Object o = own(object);
  if (o.home) {
    // The process dropped its last reference.
    if (by < 0 && node == self_ && replicas_.let_go(o, holder)) release(o, no_more());
    return peer_nodes_.tell(o.home, {object, holder, by, node, Change::Kind::kCount});
  }
  if (memory_.ended(object.job)) return;
  // A process that is gone holds nothing.
  if (by > 0 && (node == self_ ? !events_.has_worker(holder) : peer_nodes_.gone(node) != nullptr)) return;
  if (by > 0 && node != self_) watch(holder, node);
  free(references_.count(o, holder, by));
}

void Objects::count_contents(const Object& object, WorkerId holder, NodeId node) {
  for (const Object& inner : references_.contained(object)) count(key(inner), holder, node, 1);
}

void Objects::watch(WorkerId holder, NodeId node) {
  if (!elsewhere_.emplace(holder, node).second) return;
  peer_nodes_.watch(node);
  if (holder.value != node.value) peer_nodes_.tell(node, {{}, holder, 0, {}, Change::Kind::kWatch});
}

void Objects::free(const storage::ReferenceTable::Freed& freed) {
  for (const Object& object : freed) {
    if (object.home) {  // no object here contains it any more
      peer_nodes_.tell(object.home, {key(object), WorkerId{self_.value}, -1, self_, Change::Kind::kCount});
    } else {
      memory_.free(object.job, object.id);
    }
  }
  if (!freed.empty()) report_kept();
}

void Objects::worker_gone(WorkerId worker, const std::string& cause) {
  memory_.mark_gone(worker, cause);
  free(references_.worker_gone(worker));
  report_kept();
  for (const Object& object : replicas_.worker_gone(worker)) release(object, no_more());
  const auto nodes = watched_.extract(worker);
  if (nodes.empty()) return;
  for (const NodeId node : nodes.mapped()) peer_nodes_.tell(node, {{}, worker, 0, {}, Change::Kind::kGone});
}

void Objects::end_job(JobId job) {
  memory_.end_job(job);
  free(references_.end_job(job));
  report_kept();
  for (const Object& object : replicas_.end_job(job)) release(object, no_more());
}

void Objects::node_gone(NodeId node, const Error& why) {
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
  for (const Object& object : replicas_.node_gone(node)) release(object, why);
}

// ---- for processes here
// -------------------------------------------------------------------------------------------------------------

void Objects::put(JobId job, WorkerId worker, const ObjectRef& object, Result<Fd> memory) {
  if (!memory_.ended(job) && !memory_.freed(job, object.id)) {  // otherwise its contents would never be released
    std::vector<Object> inner;
    std::set<Object> others;  // not counted yet for this node at their homes
    for (const ObjectKey& k : object.contains) {
      inner.push_back(own(k));
      if (inner.back().home && !references_.knows(inner.back())) others.insert(inner.back());
    }
    if (const auto contained = references_.contain({job, object.id}, inner); !contained) memory = fail(contained.error());
    for (const Object& other : others) {
      if (references_.knows(other)) {
        peer_nodes_.tell(other.home, {key(other), WorkerId{self_.value}, 1, self_, Change::Kind::kCount});
      }
    }
  }
  const WorkerId maker = events_.has_worker(worker) ? worker : WorkerId();
  if (const auto put = memory_.put(job, object.id, std::move(memory), maker); !put)
    log_->warn("object={} {}", to_string(object.id), put.error().message());
  if (!maker) report_kept();
}

Result<void> Objects::may_come(JobId job, const ObjectRef& object) const {
  if (!object.owner || events_.has_worker(object.owner) || memory_.has(job, object.id)) return {};
  if (memory_.freed(job, object.id)) return {};  // reported by get()
  return fail(unavailable("the process that should make this object is gone").with_reason("OwnerDied"));
}

void Objects::get(JobId job, WorkerId worker, const ObjectRef& m, runtime::Responder responder) {
  const Object object = own({job, m.id, m.home});
  const bool replica = static_cast<bool>(object.home);
  bool first = false;
  if (replica) {
    if (const Error* const why = peer_nodes_.gone(object.home)) return responder.fail(*why);
    if (!events_.has_worker(worker)) return responder.fail(unavailable("the worker that asked for the object is gone"));
    if (!replicas_.transfer(object) && memory_.has(job, m.id))
      return responder.fail(not_found("the object belongs to this node, not to the named one"));
    first = replicas_.wanted(object, worker);
  } else if (const auto may = may_come(job, m); !may) {
    return responder.fail(may.error());
  }
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  memory_.get(job, m.id, replica ? WorkerId() : m.owner, [this, object, worker, shared](Result<Fd> r) {
    if (!r) return shared->fail(r.error());
    if (const auto copy = copies_.find(object); copy != copies_.end()) copy->second.last_used = next_use_++;
    const auto inner = object.home ? replicas_.contained(object) : references_.contained(object);
    if (!inner.empty() && events_.has_worker(worker)) {
      if (object.home) {
        peer_nodes_.tell(object.home, {key(object), worker, 0, self_, Change::Kind::kCountContents});
      } else {
        count_contents(object, worker, self_);
      }
    }
    Message out = body(to_bytes(ObjectRef{object.id, object.job, 0, {}, keys(inner), key(object).home}));
    out.fds.push_back(*std::move(r));
    shared->reply(std::move(out));
  });
  if (first) begin(object, m.owner);
}

void Objects::drop(JobId job, WorkerId worker, const ObjectRef& m) {
  const Object object = own({job, m.id, m.home});
  if (object.home) {
    if (replicas_.let_go(object, worker)) release(object, no_more());
    return;
  }
  const bool was_here = memory_.has(job, m.id);
  memory_.free(job, m.id);
  if (was_here) free(references_.drop({job, m.id}));
  report_kept();
}

void Objects::move(JobId job, WorkerId worker, const ObjectKey& key, Fd file) {
  const Object object = own(key);
  if (object.home && !replicas_.complete(object)) return;  // a new transfer, into other memory than the one that was moved
  const auto moved = [&]() -> Result<void> {
    const auto holders = object.home || object.job == job ? std::vector<WorkerId>() : references_.holders(object);
    const bool may =
        object.job == job || replicas_.is_wanted(object, worker) || std::find(holders.begin(), holders.end(), worker) != holders.end();
    if (!may) return fail(invalid_argument("the process that moved it has no reference to it"));
    return memory_.move(object.job, object.id, std::move(file));
  }();
  if (!moved)
    return log_->warn("object={} of worker={} is not moved: {}", to_string(object.id), to_string(worker), moved.error().message());
  if (const auto copy = copies_.extract(object); !copy.empty()) count_room(-static_cast<std::int64_t>(copy.mapped().counted));
  report_kept();
}

// ---- for other nodes
// ----------------------------------------------------------------------------------------------------------------

Result<void> Objects::met(const actors::MeetNode& meeting) const {
  if (meeting.called != self_) {
    return fail(not_found(fmt::format("node {} is gone; this address belongs to node {}", to_string(meeting.called), to_string(self_)))
                    .with_reason("AnotherNode"));
  }
  if (!meeting.caller || meeting.caller == self_) return fail(invalid_argument("the calling node did not state its id"));
  if (const Error* const why = peer_nodes_.gone(meeting.caller)) return fail(unavailable("the calling node is dead: " + why->message()));
  return {};
}

void Objects::pull(const actors::PullObject& asked, const runtime::Peer& by, runtime::Responder responder) {
  const Object object = own({asked.object.job, asked.object.id, asked.object.home});
  if (object.home) return responder.fail(not_found("the object belongs to another node"));
  if (asked.offset > 0 && !memory_.has(object.job, object.id)) return responder.fail(freed_meanwhile());
  if (const auto may = may_come(object.job, asked.object); !may) return responder.fail(may.error());
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  memory_.get(object.job, object.id, asked.object.owner,
              [this, object, offset = asked.offset, most = asked.bytes, connection = by.number(), local = by.identity().local,
               shared](Result<Fd> memory) {
                if (!memory) return shared->fail(memory.error());
                if (!local) {
                  const bool first = offset == 0;
                  return parts_.ask(connection,
                                    {[this, object, offset, most] { return part(object, offset, most); }, std::move(*shared), first});
                }
                auto out = about(object, *memory);
                if (!out) return shared->fail(out.error());
                Message message = body(*std::move(out));
                message.fds.push_back(*std::move(memory));
                shared->reply(std::move(message));
              });
}

Result<ChunkSender::Part> Objects::part(const Object& object, std::uint64_t offset, std::uint64_t most) {
  if (!memory_.has(object.job, object.id)) return fail(freed_meanwhile());
  Result<Fd> memory = fail(freed_meanwhile());
  memory_.get(object.job, object.id, {}, [&](Result<Fd> r) { memory = std::move(r); });  // immediate, as the object is there
  if (!memory) return fail(memory.error());
  SHOAL_TRY(const std::size_t total, runtime::memory_bytes(*memory));
  if (offset > total) return fail(invalid_argument("a part was requested beyond the object's end"));
  SHOAL_TRY(Bytes said, offset == 0 ? about(object, *memory) : Result<Bytes>(Bytes()));
  return ChunkSender::Part{*std::move(memory), offset, std::min<std::uint64_t>(most, total - offset), std::move(said)};
}

Result<Bytes> Objects::about(const Object& object, const Fd& memory) const {
  SHOAL_TRY(const std::size_t total, runtime::memory_bytes(memory));
  return to_bytes(ObjectRef{object.id, object.job, total, {}, keys(references_.contained(object)), self_});
}

// ---- from other nodes
// --------------------------------------------------------------------------------------------------------------

void Objects::begin(const Object& object, WorkerId owner) {
  const auto transfer = *replicas_.transfer(object);
  const ObjectRef asked{object.id, object.job, 0, owner, {}, object.home};
  peer_nodes_.call(object.home, Method::kPullObject, to_bytes(actors::PullObject{asked, 0, options_.replicas.first_bytes}),
                   [this, object, transfer](Result<Message> r) {
                     if (replicas_.transfer(object) == transfer) begun(object, std::move(r));
                   });
}

void Objects::begun(const Object& object, Result<Message> answer) {
  if (!answer) return fail_replica(object, answer.error());
  const auto described = from_bytes<ObjectRef>(answer->body);
  if (!described) return fail_replica(object, described.error());
  std::vector<Object> contains;
  for (const ObjectKey& k : described->contains) contains.push_back(own(k));
  if (answer->fds.size() == 1) {  // same host: no copy
    const auto bytes = runtime::memory_bytes(answer->fds[0]);
    if (!bytes) return fail_replica(object, bytes.error());
    replicas_.begun(object, *bytes, *bytes, std::move(contains));
    return finish(object, Result<Fd>(std::move(answer->fds[0])));
  }
  const std::uint64_t bytes = described->bytes;
  if (answer->payload.size() > bytes) return fail_replica(object, internal("the object is larger than announced"));
  auto first = std::make_shared<Bytes>(std::move(answer->payload));
  with_room({object, *replicas_.transfer(object), bytes, [this, object, bytes, first, contains](Result<void> room) {
               auto filled = room ? fill(object, bytes, *first, contains) : std::move(room);
               if (!filled) return fail_replica(object, filled.error());
               if (replicas_.complete(object)) return finish(object, for_readers(copies_.at(object).memory));
               pull_more();
             }});
}

Result<void> Objects::fill(const Object& object, std::uint64_t bytes, const Bytes& first, std::vector<Object> contains) {
  SHOAL_TRY(Fd memory, runtime::make_memory("shoal:value", bytes));
  if (first.size() > 0) SHOAL_OK(runtime::write_at(memory, 0, first.span()));
  copies_[object].memory = std::move(memory);
  replicas_.begun(object, bytes, first.size(), std::move(contains));
  return {};
}

void Objects::pull_more() {
  for (const auto& piece : replicas_.next()) {
    const ObjectRef asked{piece.object.id, piece.object.job, 0, {}, {}, piece.object.home};
    peer_nodes_.call(piece.object.home, Method::kPullObject, to_bytes(actors::PullObject{asked, piece.offset, piece.bytes}),
                     [this, piece](Result<Message> r) { pulled(piece, std::move(r)); });
  }
}

void Objects::pulled(const ReplicaTable::Piece& piece, Result<Message> answer) {
  const auto written = [&]() -> Result<void> {
    if (!answer) return fail(answer.error());
    if (replicas_.transfer(piece.object) != piece.transfer) return {};
    if (answer->payload.size() != piece.bytes) return fail(internal("the part has another size than requested"));
    return runtime::write_at(copies_.at(piece.object).memory, piece.offset, answer->payload.span());
  }();
  const bool wanted = replicas_.transfer(piece.object) == piece.transfer;
  if (replicas_.arrived(piece) && written) {
    finish(piece.object, for_readers(copies_.at(piece.object).memory));
  } else if (wanted && !written) {
    fail_replica(piece.object, written.error());
  }
  pull_more();
}

void Objects::finish(const Object& object, Result<Fd> memory) {
  if (!memory) return fail_replica(object, memory.error());
  const auto put = memory_.put(object.job, object.id, std::move(memory));
  if (!put) fail_replica(object, put.error());
}

// Fails the waiting gets; a later get begins a new transfer.
void Objects::fail_replica(const Object& object, const Error& why) {
  replicas_.drop(object);
  release(object, why);
}

void Objects::release(const Object& object, const Error& why) {
  if (!memory_.has(object.job, object.id)) (void)memory_.put(object.job, object.id, fail(why));
  memory_.drop(object.job, object.id);
  if (auto copy = copies_.extract(object); !copy.empty() && !given_back(copy.mapped())) {
    left_.push_back(std::move(copy.mapped()));
    if (left_.size() == 1) looking_at_left_ = clock_.after(options_.left_again, [this] { look_after_left(); });
  }
}

// ---- room
// -------------------------------------------------------------------------------------------------------------

void Objects::with_room(Room room) {
  room.since = clock_.now();
  if (resource_index_.empty()) looked_ = room.since;
  if (resource_index_.empty() || room.bytes <= options_.uncounted_bytes) {
    if (const auto decided = room_for(room)) return room.then(*decided);
  }
  resource_index_.push_back(std::move(room));
  if (resource_index_.size() == 1) look_for_room();
}

void Objects::look_for_room() {
  const auto now = clock_.now();
  if (const auto stood_still = now - looked_ - options_.look; stood_still > kStoodStill) {
    for (Room& room : resource_index_) room.since += stood_still;  // time in which this process stood still
  }
  looked_ = now;
  while (!resource_index_.empty()) {
    const bool wanted = replicas_.transfer(resource_index_.front().object) == resource_index_.front().transfer;
    auto decided = wanted ? room_for(resource_index_.front()) : std::optional<Result<void>>(Result<void>());
    if (!decided) break;
    const Room over = std::move(resource_index_.front());
    resource_index_.pop_front();
    if (wanted) over.then(std::move(*decided));
  }
  if (!resource_index_.empty()) looking_ = clock_.after(options_.look, [this] { look_for_room(); });
}

// Returns nothing while processes are asked to make room.
std::optional<Result<void>> Objects::room_for(Room& room) {
  const auto membership_page = events_.membership_page();
  if (room.bytes <= options_.uncounted_bytes || !membership_page || membership_page->limit() == 0) return Result<void>();
  const std::uint64_t limit = membership_page->limit();
  const auto total = membership_page->total();
  const auto now = clock_.now();
  const bool asks = !room.asked || now - *room.asked > options_.asked_again;
  if (total.kept + room.bytes <= limit || (asks && room.bytes <= limit && evict(total.kept + room.bytes - limit))) {
    copies_[room.object].counted = room.bytes;
    count_room(static_cast<std::int64_t>(room.bytes));
    return Result<void>();
  }
  const auto full = [&](const std::string& why) -> Result<void> {
    return fail(resource_exhausted(fmt::format("no room for an object of {} bytes from another node: {} of the node's {} bytes for objects "
                                               "are taken, {} lie in files; {}",
                                               room.bytes, total.kept, limit, total.spilled, why))
                    .with_reason("ObjectStoreFull")
                    .with_hint("release references and arrays that are not needed, or start with a larger object_store_memory"));
  };
  if (room.bytes > limit) return full("it is larger than all of that");
  if (total.kept < room.before.kept || total.spilled > room.before.spilled) room.since = now;
  room.before = total;
  if (now - room.since > options_.patience) return full(no_file_.empty() ? "processes read all remaining objects" : no_file_);
  if (asks) {
    spill(room.bytes);
    events_.want_room(room.bytes);
    room.asked = now;
  }
  return std::nullopt;
}

void Objects::count_room(std::int64_t by) {
  kept_bytes_ += static_cast<std::uint64_t>(by);
  report_kept();
}

// Reports to the board the bytes that no process counts.
void Objects::report_kept() {
  auto membership_page = events_.membership_page();
  if (!membership_page) return;
  membership_page->set_kept(kMember, kept_bytes_ + memory_.orphaned_bytes());
  membership_page->add_spilled(kMember, static_cast<std::int64_t>(memory_.filed_bytes() - reported_filed_));
  reported_filed_ = memory_.filed_bytes();
}

void Objects::make_room(std::uint64_t bytes) {
  (void)evict(bytes);
  spill(bytes);
}

// Moves more than is asked for: a process that makes one object usually makes others, and would wait each time.
void Objects::spill(std::uint64_t bytes) {
  const auto membership_page = events_.membership_page();
  if (!options_.write_aside || !membership_page) return;
  const std::uint64_t ahead = std::min(membership_page->limit() / 8, kSpilledAhead);
  to_spill_ = std::max(to_spill_, std::clamp(bytes, ahead, std::max(ahead, kSpilledAtMost)));
  if (spilling_ || (in_vain_ && clock_.now() - *in_vain_ < options_.asked_again)) return;
  looks_ = options_.looks;
  spill_next();
}

// Moves one object after the other. Each is checked to be idle at its turn, and again when its file is written.
void Objects::spill_next() {
  auto object = to_spill_ > 0 ? memory_.next_idle(looks_) : std::nullopt;
  if (!object) {
    if (to_spill_ > 0) in_vain_ = clock_.now();
    to_spill_ = 0;
    return;
  }
  struct Moved {
    storage::MemoryTable::Idle from;
    Result<Fd> to;
  };
  auto moved = std::make_shared<Moved>(Moved{*std::move(object), fail(cancelled("not yet"))});
  spilling_ = true;
  options_.write_aside(
      [moved, folder = options_.spill_folder, over = over_] {
        moved->to = runtime::spill_to_file(moved->from.memory, moved->from.bytes, folder, [&] { return over->load(); });
        moved->from.memory.reset();
      },
      [this, over = over_, moved] {
        if (*over) return;
        spilling_ = false;
        const auto& from = moved->from;
        to_spill_ -= std::min(to_spill_, from.bytes);
        if (!moved->to) {  // the next one would fail as well
          to_spill_ = 0;
          const std::string& why = moved->to.error().message();
          if (why != no_file_) log_->warn("object={} is not moved to a file: {}", to_string(from.id), why);
          no_file_ = why;
        } else {
          no_file_.clear();
          (void)memory_.move_idle(from.job, from.id, *std::move(moved->to));
        }
        report_kept();
        spill_next();
      });
}

Result<Fd> Objects::for_readers(const Fd& memory) {
  Fd out(open(fmt::format("/proc/self/fd/{}", memory.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!out || flock(out.get(), LOCK_SH | LOCK_NB) != 0) return fail(resource_exhausted("the node has no descriptor left for an object"));
  return out;
}

// Returns true if that was enough.
bool Objects::evict(std::uint64_t bytes) {
  look_after_left();
  std::vector<std::pair<std::uint64_t, Object>> all;
  for (const auto& [object, copy] : copies_) {
    if (copy.counted > 0 && replicas_.complete(object)) all.emplace_back(copy.last_used, object);
  }
  std::sort(all.begin(), all.end());
  std::uint64_t out = 0;
  for (const auto& [used, object] : all) {
    if (out >= bytes) break;
    const auto copy = copies_.find(object);
    memory_.drop(object.job, object.id);
    if (flock(copy->second.memory.get(), LOCK_EX | LOCK_NB) != 0) {  // a process reads it
      finish(object, for_readers(copy->second.memory));
      continue;
    }
    out += copy->second.counted;
    count_room(-static_cast<std::int64_t>(copy->second.counted));
    copies_.erase(copy);
    replicas_.drop(object);
  }
  return out >= bytes;
}

bool Objects::given_back(const Copy& copy) {
  if (copy.memory && flock(copy.memory.get(), LOCK_EX | LOCK_NB) != 0) return false;  // a process reads it
  count_room(-static_cast<std::int64_t>(copy.counted));
  return true;
}

// Checks a limited number of them in turn, as there may be very many.
void Objects::look_after_left() {
  for (std::size_t n = std::min(left_.size(), options_.left_at_once); n > 0; --n) {
    Copy copy = std::move(left_.front());
    left_.pop_front();
    if (!given_back(copy)) left_.push_back(std::move(copy));
  }
  if (!left_.empty()) looking_at_left_ = clock_.after(options_.left_again, [this] { look_after_left(); });
}

}  // namespace shoal::scheduler
