#include "scheduler/node/objects/replicas.h"

#include "runtime/shm/memory.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::ObjectRef;
using actors::to_bytes;
using runtime::Message;
using storage::ReplicaTable;

namespace {
Error no_more() { return unavailable("this node has no reference to this object any more").with_reason("ObjectLetGo"); }
}  // namespace

Replicas::Replicas(runtime::Clock& clock, const ObjectNames& names, PeerNodes& peer_nodes, storage::MemoryTable& memory,
                   UncountedBytes& uncounted, Spiller& spiller, const ObjectOptions& options,
                   std::function<void(std::uint64_t bytes)> want_room)
    : names_(names),
      peer_nodes_(peer_nodes),
      memory_(memory),
      options_(options),
      table_(options.replicas),
      copies_(clock, uncounted, options),
      room_(clock, uncounted, copies_, spiller, options,
            {[this](const Object& object, std::uint64_t transfer) { return table_.transfer(object) == transfer; },
             [this](std::uint64_t bytes) { return evict(bytes); }, std::move(want_room)}) {}

// ---- transfers ---------------------------------------------------------------------------------------------------------------------

void Replicas::begin(const Object& object, WorkerId owner) {
  const auto transfer = *table_.transfer(object);
  const ObjectRef requested{object.id, object.job, 0, owner, {}, object.home};
  peer_nodes_.call(object.home, Method::kPullObject, to_bytes(actors::PullObject{requested, 0, options_.replicas.first_bytes}),
                   [this, object, transfer](Result<Message> r) {
                     if (table_.transfer(object) == transfer) begun(object, std::move(r));
                   });
}

void Replicas::begun(const Object& object, Result<Message> answer) {
  if (!answer) return fail_transfer(object, answer.error());
  const auto described = from_bytes<ObjectRef>(answer->body);
  if (!described) return fail_transfer(object, described.error());
  std::vector<Object> contains = names_.objects(described->contains);
  // The home is a node of the same host, so its memory is used without a copy.
  if (answer->fds.size() == 1) {
    const auto bytes = runtime::memory_bytes(answer->fds[0]);
    if (!bytes) return fail_transfer(object, bytes.error());
    table_.begun(object, *bytes, *bytes, std::move(contains));
    return finish(object, Result<Fd>(std::move(answer->fds[0])));
  }
  const std::uint64_t bytes = described->bytes;
  if (answer->payload.size() > bytes) return fail_transfer(object, internal("the object is larger than announced"));
  auto first = std::make_shared<Bytes>(std::move(answer->payload));
  room_.take(object, *table_.transfer(object), bytes, [this, object, bytes, first, contains](Result<void> room) {
    auto filled = room ? fill(object, bytes, *first, contains) : std::move(room);
    if (!filled) return fail_transfer(object, filled.error());
    if (table_.complete(object)) return finish(object, copies_.for_readers(object));
    pull_more();
  });
}

Result<void> Replicas::fill(const Object& object, std::uint64_t bytes, const Bytes& first, std::vector<Object> contains) {
  SHOAL_OK(copies_.make(object, bytes, first.span()));
  table_.begun(object, bytes, first.size(), std::move(contains));
  return {};
}

void Replicas::pull_more() {
  for (const auto& piece : table_.next()) {
    const ObjectRef requested{piece.object.id, piece.object.job, 0, {}, {}, piece.object.home};
    peer_nodes_.call(piece.object.home, Method::kPullObject, to_bytes(actors::PullObject{requested, piece.offset, piece.bytes}),
                     [this, piece](Result<Message> r) { pulled(piece, std::move(r)); });
  }
}

void Replicas::pulled(const ReplicaTable::Piece& piece, Result<Message> answer) {
  const auto written = [&]() -> Result<void> {
    if (!answer) return fail(answer.error());
    if (table_.transfer(piece.object) != piece.transfer) return {};
    if (answer->payload.size() != piece.bytes) return fail(internal("the part has another size than requested"));
    return copies_.write(piece.object, piece.offset, answer->payload.span());
  }();
  const bool wanted = table_.transfer(piece.object) == piece.transfer;
  if (table_.arrived(piece) && written) {
    finish(piece.object, copies_.for_readers(piece.object));
  } else if (wanted && !written) {
    fail_transfer(piece.object, written.error());
  }
  pull_more();
}

void Replicas::finish(const Object& object, Result<Fd> memory) {
  if (!memory) return fail_transfer(object, memory.error());
  const auto put = memory_.put(object.job, object.id, std::move(memory));
  if (!put) fail_transfer(object, put.error());
}

void Replicas::fail_transfer(const Object& object, const Error& why) {
  table_.drop(object);
  release({object}, why);
}

// ---- ends --------------------------------------------------------------------------------------------------------------------------

void Replicas::release(const std::vector<Object>& objects, const Error& why) {
  for (const Object& object : objects) {
    if (!memory_.has(object.job, object.id)) (void)memory_.put(object.job, object.id, fail(why));
    memory_.drop(object.job, object.id);
    copies_.drop(object);
  }
}

bool Replicas::evict(std::uint64_t bytes) {
  copies_.check_left();
  std::uint64_t out = 0;
  for (const Object& object : copies_.evictable()) {
    if (out >= bytes) break;
    if (!table_.complete(object)) continue;
    memory_.drop(object.job, object.id);
    if (const auto freed = copies_.evict(object)) {
      out += *freed;
      table_.drop(object);
    } else {
      // A process reads the replica: put back the memory that was dropped above.
      finish(object, copies_.for_readers(object));
    }
  }
  return out >= bytes;
}

void Replicas::let_go(const Object& object, WorkerId worker) {
  if (table_.let_go(object, worker)) release({object}, no_more());
}

void Replicas::worker_gone(WorkerId worker) { release(table_.worker_gone(worker), no_more()); }

void Replicas::end_job(JobId job) { release(table_.end_job(job), no_more()); }

void Replicas::node_gone(NodeId home, const Error& why) { release(table_.node_gone(home), why); }

void Replicas::drop_all(const Error& why) {
  while (const auto left = table_.first()) node_gone(left->home, why);
}

}  // namespace shoal::scheduler
