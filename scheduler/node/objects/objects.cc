#include "scheduler/node/objects/objects.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/shm/memory.h"

namespace shoal::scheduler {

using actors::ObjectKey;
using actors::ObjectRef;
using actors::to_bytes;
using runtime::Message;

namespace {

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

Error freed_meanwhile() { return unavailable("this object was freed while it was read").with_reason("ObjectFreed"); }

}  // namespace

Objects::Objects(runtime::Clock& clock, runtime::Network& network, storage::MemoryTable& memory, const runtime::Log& log, Options options,
                 PeerNodes::Options peer_nodes, std::function<runtime::Peer*()> head, Events events)
    : memory_(memory),
      log_(log),
      options_(std::move(options)),
      events_(std::move(events)),
      uncounted_(memory, events_.usage_board),
      spiller_(clock, memory, uncounted_, log, options_),
      parts_(clock, options_.parts, events_.queued),
      peer_nodes_(clock, network, log, peer_nodes, {std::move(head), [this](NodeId node, const Error& why) { node_gone(node, why); }}),
      references_(names_, peer_nodes_, memory, uncounted_, options_.max_references,
                  {events_.has_worker, [this](const Object& object, WorkerId worker) { replicas_.let_go(object, worker); }}),
      replicas_(clock, names_, peer_nodes_, memory, uncounted_, spiller_, options_, events_.want_room) {}

void Objects::start_as(NodeId self) {
  if (names_.start_as(self)) {
    const Error why = unavailable("this node was declared dead, and joined again as another node").with_reason("OwnerDied");
    for (const NodeId node : references_.nodes()) node_gone(node, why);
    replicas_.drop_all(why);
    references_.start_anew();
  }
  peer_nodes_.start_as(self);
}

void Objects::worker_gone(WorkerId worker, const std::string& cause) {
  memory_.mark_gone(worker, cause);
  references_.worker_gone(worker);
  uncounted_.report();
  replicas_.worker_gone(worker);
}

void Objects::end_job(JobId job) {
  memory_.end_job(job);
  references_.end_job(job);
  uncounted_.report();
  replicas_.end_job(job);
}

void Objects::node_gone(NodeId node, const Error& why) {
  references_.node_gone(node);
  replicas_.node_gone(node, why);
}

// ---- for processes here ------------------------------------------------------------------------------------------------------------

void Objects::put(JobId job, WorkerId worker, const ObjectRef& object, Result<Fd> memory) {
  // Records what the object contains, but only if the object is kept: else nothing would ever release its contents.
  if (!memory_.ended(job) && !memory_.freed(job, object.id)) {
    if (const auto contained = references_.contain({job, object.id}, object.contains); !contained) memory = fail(contained.error());
  }
  const WorkerId maker = events_.has_worker(worker) ? worker : WorkerId();
  if (const auto put = memory_.put(job, object.id, std::move(memory), maker); !put)
    log_->warn("object={} {}", to_string(object.id), put.error().message());
  if (!maker) uncounted_.report();
}

Result<void> Objects::may_come(JobId job, const ObjectRef& object) const {
  if (!object.owner || events_.has_worker(object.owner) || memory_.has(job, object.id)) return {};
  if (memory_.freed(job, object.id)) return {};  // get() reports the error
  return fail(unavailable("the process that should make this object is gone").with_reason("OwnerDied"));
}

void Objects::get(JobId job, WorkerId worker, const ObjectRef& m, runtime::Responder responder) {
  const Object object = names_.object({job, m.id, m.home});
  const bool replica = static_cast<bool>(object.home);
  bool first = false;
  if (replica) {
    if (const Error* const why = peer_nodes_.gone(object.home)) return responder.fail(*why);
    if (!events_.has_worker(worker)) return responder.fail(unavailable("the worker that asked for the object is gone"));
    if (!replicas_.table().transfer(object) && memory_.has(job, m.id))
      return responder.fail(not_found("the object belongs to this node, not to the named one"));
    first = replicas_.want(object, worker);
  } else if (const auto may = may_come(job, m); !may) {
    return responder.fail(may.error());
  }
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  memory_.get(job, m.id, replica ? WorkerId() : m.owner, [this, object, worker, shared](Result<Fd> r) {
    if (!r) return shared->fail(r.error());
    shared->reply(handed_out(object, worker, *std::move(r)));
  });
  if (first) replicas_.begin(object, m.owner);
}

Message Objects::handed_out(const Object& object, WorkerId worker, Fd memory) {
  replicas_.used(object);
  const auto inner = object.home ? replicas_.table().contained(object) : references().contained(object);
  references_.count_contents(object, inner, worker);
  Message out = body(to_bytes(ObjectRef{object.id, object.job, 0, {}, names_.keys(inner), names_.key(object).home}));
  out.fds.push_back(std::move(memory));
  return out;
}

void Objects::drop(JobId job, WorkerId worker, const ObjectRef& m) {
  const Object object = names_.object({job, m.id, m.home});
  if (object.home) return replicas_.let_go(object, worker);
  const bool was_known = memory_.has(job, m.id);
  memory_.free(job, m.id);
  if (was_known) references_.drop(object);
  uncounted_.report();
}

void Objects::move(JobId job, WorkerId worker, const ObjectKey& key, Fd file) {
  const Object object = names_.object(key);
  // Ignores the file if a new transfer of the object has begun since: that fills other memory than what was moved into the file.
  if (object.home && !replicas_.table().complete(object)) return;
  const auto moved = [&]() -> Result<void> {
    const auto holders = object.home || object.job == job ? std::vector<WorkerId>() : references().holders(object);
    const bool may = object.job == job || replicas_.table().is_wanted(object, worker) ||
                     std::find(holders.begin(), holders.end(), worker) != holders.end();
    if (!may) return fail(invalid_argument("the process that moved it has no reference to it"));
    return memory_.move(object.job, object.id, std::move(file));
  }();
  if (!moved)
    return log_->warn("object={} of worker={} is not moved: {}", to_string(object.id), to_string(worker), moved.error().message());
  replicas_.replaced(object);
  uncounted_.report();
}

void Objects::make_room(std::uint64_t bytes) {
  (void)replicas_.evict(bytes);
  spiller_.spill(bytes);
}

// ---- for other nodes ---------------------------------------------------------------------------------------------------------------

Result<void> Objects::met(const actors::MeetNode& meeting) const {
  const NodeId self = names_.self();
  if (meeting.called != self) {
    return fail(not_found(fmt::format("node {} is gone; this address belongs to node {}", to_string(meeting.called), to_string(self)))
                    .with_reason("AnotherNode"));
  }
  if (!meeting.caller || meeting.caller == self) return fail(invalid_argument("the calling node did not state its id"));
  if (const Error* const why = peer_nodes_.gone(meeting.caller)) return fail(unavailable("the calling node is dead: " + why->message()));
  return {};
}

void Objects::pull(const actors::PullObject& request, const runtime::Peer& by, runtime::Responder responder) {
  const Object object = names_.object({request.object.job, request.object.id, request.object.home});
  if (object.home) return responder.fail(not_found("the object belongs to another node"));
  if (request.offset > 0 && !memory_.has(object.job, object.id)) return responder.fail(freed_meanwhile());
  if (const auto may = may_come(object.job, request.object); !may) return responder.fail(may.error());
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  memory_.get(object.job, object.id, request.object.owner,
              [this, object, offset = request.offset, most = request.bytes, connection = by.number(), local = by.identity().local,
               shared](Result<Fd> memory) {
                if (!memory) return shared->fail(memory.error());
                if (!local) {
                  const bool first = offset == 0;
                  return parts_.enqueue(connection,
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
  // The callback runs at once, since the object is there.
  memory_.get(object.job, object.id, {}, [&](Result<Fd> r) { memory = std::move(r); });
  if (!memory) return fail(memory.error());
  SHOAL_TRY(const std::size_t total, runtime::memory_bytes(*memory));
  if (offset > total) return fail(invalid_argument("a part was requested beyond the object's end"));
  SHOAL_TRY(Bytes description, offset == 0 ? about(object, *memory) : Result<Bytes>(Bytes()));
  return ChunkSender::Part{*std::move(memory), offset, std::min<std::uint64_t>(most, total - offset), std::move(description)};
}

Result<Bytes> Objects::about(const Object& object, const Fd& memory) const {
  SHOAL_TRY(const std::size_t total, runtime::memory_bytes(memory));
  return to_bytes(ObjectRef{object.id, object.job, total, {}, names_.keys(references().contained(object)), names_.self()});
}

}  // namespace shoal::scheduler
