#include "actors/protocol/wire/node_messages.h"

#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/object_key.h"
#include "actors/protocol/wire/pieces.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/error_message.h"

namespace shoal::actors {

using runtime::read;
using runtime::text;
using runtime::write;

// ---- messages to nodes, from the head, processes and other nodes: each to_bytes is beside its from_bytes ----

Bytes to_bytes(const StartWorker& v) {
  return write<wire::StartWorker>([&](wire::StartWorker::Builder m) {
    m.setWorker(v.worker.value);
    m.setJob(v.job.value);
    fill(m.initLaunch(), v.launch);
    m.setRank(v.rank);
    m.setLabel(v.label);
    m.setGpuUnits(v.gpu_units);
    m.setRunAgain(v.run_again);
  });
}
template <>
Result<StartWorker> from_bytes(const Bytes& bytes) {
  return read<wire::StartWorker>(bytes, [](wire::StartWorker::Reader m) {
    return StartWorker{WorkerId{m.getWorker()}, JobId{m.getJob()}, read_launch(m.getLaunch()), m.getRank(), text(m.getLabel()),
                       m.getGpuUnits(),         m.getRunAgain()};
  });
}

Bytes to_bytes(const StopWorker& v) {
  return write<wire::StopWorker>([&](wire::StopWorker::Builder m) {
    m.setWorker(v.worker.value);
    m.setSignal(v.signal);
    m.setGraceMs(v.grace_ms);
  });
}
template <>
Result<StopWorker> from_bytes(const Bytes& bytes) {
  return read<wire::StopWorker>(bytes, [](wire::StopWorker::Reader m) {
    KJ_REQUIRE(m.getSignal() > 0 && m.getSignal() < 32, "no such signal");
    return StopWorker{WorkerId{m.getWorker()}, m.getSignal(), m.getGraceMs()};
  });
}

Bytes to_bytes(const KillHosted& v) {
  return write<wire::KillHosted>([&](wire::KillHosted::Builder m) {
    m.setWorker(v.worker.value);
    m.setPid(v.pid);
    m.setActor(v.actor.value);
    fill_cause(m, v.cause);
  });
}
template <>
Result<KillHosted> from_bytes(const Bytes& bytes) {
  return read<wire::KillHosted>(bytes, [](wire::KillHosted::Reader m) {
    return KillHosted{WorkerId{m.getWorker()}, m.getPid(), ActorId{m.getActor()}, read_cause(m)};
  });
}

Bytes to_bytes(const Attach& v) {
  return write<wire::Attach>([&](wire::Attach::Builder m) {
    m.setWorker(v.worker.value);
    m.setJob(v.job.value);
    m.setRole(v.role);
  });
}
template <>
Result<Attach> from_bytes(const Bytes& bytes) {
  return read<wire::Attach>(
      bytes, [](wire::Attach::Reader m) { return Attach{WorkerId{m.getWorker()}, JobId{m.getJob()}, row_text(m.getRole(), "role")}; });
}

Bytes to_bytes(const Attached& v) {
  return write<wire::Attached>([&](wire::Attached::Builder m) {
    m.setNode(v.node.value);
    m.setJob(v.job.value);
    m.setHead(v.head);
    m.setSession(v.session);
    m.setHost(v.host);
    m.setWorker(v.worker.value);
    m.setMember(v.member);
    m.setSpill(v.spill);
  });
}
template <>
Result<Attached> from_bytes(const Bytes& bytes) {
  return read<wire::Attached>(bytes, [](wire::Attached::Reader m) {
    return Attached{NodeId{m.getNode()}, JobId{m.getJob()},       text(m.getHead()), text(m.getSession()),
                    text(m.getHost()),   WorkerId{m.getWorker()}, m.getMember(),     text(m.getSpill())};
  });
}

Bytes to_bytes(const OpenArena& v) {
  return write<wire::OpenArena>([&](wire::OpenArena::Builder m) {
    m.setKey(v.key);
    m.setBytes(v.bytes);
    m.setJob(v.job.value);
    m.setMember(v.member);
    m.setLasting(v.lasting);
  });
}
template <>
Result<OpenArena> from_bytes(const Bytes& bytes) {
  return read<wire::OpenArena>(bytes, [](wire::OpenArena::Reader m) {
    return OpenArena{text(m.getKey()), m.getBytes(), JobId{m.getJob()}, m.getMember(), m.getLasting()};
  });
}

Bytes to_bytes(const OpenedArena& v) {
  return write<wire::OpenedArena>([&](wire::OpenedArena::Builder m) { m.setCreated(v.created); });
}
template <>
Result<OpenedArena> from_bytes(const Bytes& bytes) {
  return read<wire::OpenedArena>(bytes, [](wire::OpenedArena::Reader m) { return OpenedArena{m.getCreated()}; });
}

Bytes to_bytes(const ArenaRef& v) {
  return write<wire::ArenaRef>([&](wire::ArenaRef::Builder m) {
    m.setKey(v.key);
    m.setJob(v.job.value);
  });
}
template <>
Result<ArenaRef> from_bytes(const Bytes& bytes) {
  return read<wire::ArenaRef>(bytes, [](wire::ArenaRef::Reader m) { return ArenaRef{text(m.getKey()), JobId{m.getJob()}}; });
}

namespace {

void fill(wire::ObjectRef::Builder m, const ObjectRef& v) {
  m.setId(v.id.value);
  m.setJob(v.job.value);
  m.setBytes(v.bytes);
  m.setOwner(v.owner.value);
  m.setHome(v.home.value);
  if (!v.contains.empty()) fill_keys(m.initContains(count(v.contains)), v.contains);
}

ObjectRef read_object(wire::ObjectRef::Reader m) {
  return {ObjectId{m.getId()}, JobId{m.getJob()}, m.getBytes(), WorkerId{m.getOwner()}, read_keys(m.getContains()), NodeId{m.getHome()}};
}

}  // namespace

Bytes to_bytes(const ObjectRef& v) {
  return write<wire::ObjectRef>([&](wire::ObjectRef::Builder m) { fill(m, v); });
}
template <>
Result<ObjectRef> from_bytes(const Bytes& bytes) {
  return read<wire::ObjectRef>(bytes, read_object);
}

Bytes to_bytes(const PullObject& v) {
  return write<wire::PullObject>([&](wire::PullObject::Builder m) {
    fill(m.initObject(), v.object);
    m.setOffset(v.offset);
    m.setBytes(v.bytes);
  });
}
template <>
Result<PullObject> from_bytes(const Bytes& bytes) {
  return read<wire::PullObject>(
      bytes, [](wire::PullObject::Reader m) { return PullObject{read_object(m.getObject()), m.getOffset(), m.getBytes()}; });
}

Bytes to_bytes(const CountObjects& v) {
  return write<wire::CountObjects>([&](wire::CountObjects::Builder m) {
    m.setNumber(v.number);
    auto changes = m.initChanges(count(v.changes));
    for (unsigned i = 0; i < v.changes.size(); ++i) {
      const auto& c = v.changes[i];
      auto object = changes[i].initObject();
      object.setJob(c.object.job.value);
      object.setId(c.object.id.value);
      object.setHome(c.object.home.value);
      changes[i].setHolder(c.holder.value);
      changes[i].setBy(c.by);
      changes[i].setHolderNode(c.holder_node.value);
      changes[i].setKind(static_cast<std::uint16_t>(c.kind));
    }
  });
}
template <>
Result<CountObjects> from_bytes(const Bytes& bytes) {
  return read<wire::CountObjects>(bytes, [](wire::CountObjects::Reader m) {
    using Change = CountObjects::Change;
    check_size(m.getChanges(), kMaxList, "changes");
    CountObjects out;
    out.number = m.getNumber();
    for (const auto c : m.getChanges()) {
      const auto o = c.getObject();
      out.changes.push_back({{JobId{o.getJob()}, ObjectId{o.getId()}, NodeId{o.getHome()}},
                             WorkerId{c.getHolder()},
                             c.getBy(),
                             NodeId{c.getHolderNode()},
                             checked<Change::Kind>(c.getKind(), 4, "kind of change")});
    }
    return out;
  });
}

Bytes to_bytes(const MeetNode& v) {
  return write<wire::MeetNode>([&](wire::MeetNode::Builder m) {
    m.setCaller(v.caller.value);
    m.setCalled(v.called.value);
  });
}
template <>
Result<MeetNode> from_bytes(const Bytes& bytes) {
  return read<wire::MeetNode>(bytes, [](wire::MeetNode::Reader m) { return MeetNode{NodeId{m.getCaller()}, NodeId{m.getCalled()}}; });
}

Bytes to_bytes(const NodeRef& v) {
  return write<wire::NodeRef>([&](wire::NodeRef::Builder m) { m.setNode(v.node.value); });
}
template <>
Result<NodeRef> from_bytes(const Bytes& bytes) {
  return read<wire::NodeRef>(bytes, [](wire::NodeRef::Reader m) { return NodeRef{NodeId{m.getNode()}}; });
}

Bytes to_bytes(const NodeGone& v) {
  return write<wire::NodeGone>([&](wire::NodeGone::Builder m) {
    m.setNode(v.node.value);
    runtime::fill_error(m.initCause(), v.cause);
  });
}
template <>
Result<NodeGone> from_bytes(const Bytes& bytes) {
  return read<wire::NodeGone>(bytes,
                              [](wire::NodeGone::Reader m) { return NodeGone{NodeId{m.getNode()}, runtime::read_error(m.getCause())}; });
}

Bytes to_bytes(const MakeRoom& v) {
  return write<wire::MakeRoom>([&](wire::MakeRoom::Builder m) { m.setBytes(v.bytes); });
}
template <>
Result<MakeRoom> from_bytes(const Bytes& bytes) {
  return read<wire::MakeRoom>(bytes, [](wire::MakeRoom::Reader m) { return MakeRoom{m.getBytes()}; });
}

Bytes to_bytes(const LogLines& v) {
  return write<wire::LogLines>([&](wire::LogLines::Builder m) {
    m.setWorker(v.worker.value);
    m.setRank(v.rank);
    m.setLabel(v.label);
    m.setStream(v.stream);
    m.setPid(v.pid);
  });
}
template <>
Result<LogLines> from_bytes(const Bytes& bytes) {
  return read<wire::LogLines>(bytes, [](wire::LogLines::Reader m) {
    return LogLines{WorkerId{m.getWorker()}, m.getRank(), text(m.getLabel()), m.getStream(), m.getPid()};
  });
}

Bytes to_bytes(const FreePort& v) {
  return write<wire::FreePort>([&](wire::FreePort::Builder m) { m.setPort(v.port); });
}
template <>
Result<FreePort> from_bytes(const Bytes& bytes) {
  return read<wire::FreePort>(bytes, [](wire::FreePort::Reader m) { return FreePort{m.getPort()}; });
}

Bytes to_bytes(const ReadLog& v) {
  return write<wire::ReadLog>([&](wire::ReadLog::Builder m) {
    m.setWorker(v.worker.value);
    m.setStream(v.stream);
    m.setTailBytes(v.tail_bytes);
  });
}
template <>
Result<ReadLog> from_bytes(const Bytes& bytes) {
  return read<wire::ReadLog>(bytes,
                             [](wire::ReadLog::Reader m) { return ReadLog{WorkerId{m.getWorker()}, m.getStream(), m.getTailBytes()}; });
}

}  // namespace shoal::actors
