#include "actors/protocol/wire/head_messages.h"

#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/pieces.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/error_message.h"

namespace shoal::actors {

using runtime::read;
using runtime::text;
using runtime::write;

// ---- messages to the head, with its answers and notices; each to_bytes is beside its from_bytes ----

Bytes to_bytes(const RegisterNode& v) {
  return write<wire::RegisterNode>([&](wire::RegisterNode::Builder m) {
    m.setId(v.id.value);
    m.setHost(v.host);
    m.setPid(v.pid);
    m.setEndpoint(v.endpoint);
    fill_resources(m.initResources(count(v.resources.all())), v.resources);
    fill_pairs(m.initLabels(count(v.labels)), v.labels);
  });
}
template <>
Result<RegisterNode> from_bytes(const Bytes& bytes) {
  return read<wire::RegisterNode>(bytes, [](wire::RegisterNode::Reader m) {
    return RegisterNode{NodeId{m.getId()},      text(m.getHost()), m.getPid(), text(m.getEndpoint()), read_resources(m.getResources()),
                        read_map(m.getLabels())};
  });
}

Bytes to_bytes(const RegisteredNode& v) {
  return write<wire::RegisteredNode>([&](wire::RegisteredNode::Builder m) {
    m.setSession(v.session);
    m.setHeartbeatMs(v.heartbeat_ms);
    fill_texts(m.initHeads(count(v.heads)), v.heads);
  });
}
template <>
Result<RegisteredNode> from_bytes(const Bytes& bytes) {
  return read<wire::RegisteredNode>(bytes, [](wire::RegisteredNode::Reader m) {
    return RegisteredNode{text(m.getSession()), m.getHeartbeatMs(), read_texts(m.getHeads())};
  });
}

Bytes to_bytes(const Heads& v) {
  return write<wire::Heads>([&](wire::Heads::Builder m) {
    fill_texts(m.initEndpoints(count(v.endpoints)), v.endpoints);
    m.setMoved(v.moved);
  });
}
template <>
Result<Heads> from_bytes(const Bytes& bytes) {
  return read<wire::Heads>(bytes, [](wire::Heads::Reader m) { return Heads{read_texts(m.getEndpoints()), m.getMoved()}; });
}

Bytes to_bytes(const WorkerUpdate& v) {
  return write<wire::WorkerUpdate>([&](wire::WorkerUpdate::Builder m) {
    m.setWorker(v.worker.value);
    m.setState(number(v.state));
    m.setPid(v.pid);
    m.setEndpoint(v.endpoint);
    m.setShellCode(v.shell_code);
    fill_cause(m, v.cause);
    m.setJob(v.job.value);
    m.setRole(v.role);
  });
}
template <>
Result<WorkerUpdate> from_bytes(const Bytes& bytes) {
  return read<wire::WorkerUpdate>(bytes, [](wire::WorkerUpdate::Reader m) {
    return WorkerUpdate{WorkerId{m.getWorker()},
                        checked<WorkerState>(m.getState(), kNumWorkerStates, "worker state"),
                        m.getPid(),
                        text(m.getEndpoint()),
                        m.getShellCode(),
                        read_cause(m),
                        JobId{m.getJob()},
                        text(m.getRole())};
  });
}

Bytes to_bytes(const RegisterDriver& v) {
  return write<wire::RegisterDriver>([&](wire::RegisterDriver::Builder m) {
    m.setName(v.name);
    m.setPid(v.pid);
    m.setJob(v.job.value);
  });
}
template <>
Result<RegisterDriver> from_bytes(const Bytes& bytes) {
  return read<wire::RegisterDriver>(
      bytes, [](wire::RegisterDriver::Reader m) { return RegisterDriver{text(m.getName()), m.getPid(), JobId{m.getJob()}}; });
}

Bytes to_bytes(const RegisteredDriver& v) {
  return write<wire::RegisteredDriver>([&](wire::RegisteredDriver::Builder m) {
    m.setJob(v.job.value);
    m.setNode(v.node);
    m.setSession(v.session);
  });
}
template <>
Result<RegisteredDriver> from_bytes(const Bytes& bytes) {
  return read<wire::RegisteredDriver>(
      bytes, [](wire::RegisteredDriver::Reader m) { return RegisteredDriver{JobId{m.getJob()}, text(m.getNode()), text(m.getSession())}; });
}

Bytes to_bytes(const GangSpec& v) {
  return write<wire::CreateGang>([&](wire::CreateGang::Builder m) {
    m.setId(v.id.value);
    m.setJob(v.job.value);
    auto actors = m.initActors(count(v.actors));
    for (unsigned i = 0; i < v.actors.size(); ++i) {
      actors[i].setId(v.actors[i].id.value);
      actors[i].setClassName(v.actors[i].class_name);
      fill_resources(actors[i].initResources(count(v.actors[i].resources.all())), v.actors[i].resources);
    }
    fill(m.initLaunch(), v.launch);
    m.setRefuseInfeasible(v.refuse_infeasible);
    m.setName(v.name);
    m.setNameSpace(v.name_space);
    m.setHandle(data_of(v.handle));
    m.setGetIfExists(v.get_if_exists);
    m.setDetached(v.detached);
    fill(m.initWhere(), v.where);
    m.setMaxRestarts(v.max_restarts);
    m.setMaxTaskRetries(v.max_task_retries);
    m.setCreationSpec(data_of(v.creation_spec));
    m.setCreator(v.creator.value);
  });
}
template <>
Result<GangSpec> from_bytes(const Bytes& bytes) {
  return read<wire::CreateGang>(bytes, [](wire::CreateGang::Reader m) {
    GangSpec v;
    v.id = GangId{m.getId()};
    v.job = JobId{m.getJob()};
    check_size(m.getActors(), GangSpec::kMaxActors, "actors of a gang");
    for (const auto a : m.getActors()) v.actors.push_back({ActorId{a.getId()}, text(a.getClassName()), read_resources(a.getResources())});
    v.launch = read_launch(m.getLaunch());
    v.refuse_infeasible = m.getRefuseInfeasible();
    v.name = text(m.getName());
    v.name_space = text(m.getNameSpace());
    v.handle = bytes_of(m.getHandle());
    KJ_REQUIRE(v.handle.size() <= GangSpec::kMaxHandle, "a handle is too long");
    v.get_if_exists = m.getGetIfExists();
    v.detached = m.getDetached();
    v.where = read_where(m.getWhere());
    v.max_restarts = m.getMaxRestarts();
    v.max_task_retries = m.getMaxTaskRetries();
    v.creation_spec = bytes_of(m.getCreationSpec());
    v.creator = WorkerId{m.getCreator()};
    KJ_REQUIRE(v.name.size() <= GangSpec::kMaxName && v.name_space.size() <= GangSpec::kMaxName, "a name is too long");
    KJ_REQUIRE(v.actors.size() == 1 || (v.name.empty() && !v.detached && v.max_restarts == 0),
               "only a single actor has a name, is detached or restarts");
    KJ_REQUIRE(v.max_restarts >= -1 && v.max_task_retries >= -1, "a negative count");
    return v;
  });
}

Bytes to_bytes(const JobSpec& v) {
  return write<wire::SubmitJob>([&](wire::SubmitJob::Builder m) {
    m.setName(v.name);
    fill(m.initLaunch(), v.launch);
    m.setNumWorkers(v.num_workers);
    fill_resources(m.initResources(count(v.resources.all())), v.resources);
    m.setWait(v.wait);
    m.setOwnerPid(v.owner);
    fill(m.initSubmission(), v.submission);
  });
}
template <>
Result<JobSpec> from_bytes(const Bytes& bytes) {
  return read<wire::SubmitJob>(bytes, [](wire::SubmitJob::Reader m) {
    KJ_REQUIRE(m.getNumWorkers() <= GangSpec::kMaxActors, "too many workers");
    return JobSpec{text(m.getName()), read_launch(m.getLaunch()),        m.getNumWorkers(), read_resources(m.getResources()), m.getWait(),
                   m.getOwnerPid(),   read_submission(m.getSubmission())};
  });
}

Bytes to_bytes(const StopJob& v) {
  return write<wire::StopJob>([&](wire::StopJob::Builder m) {
    m.setJob(v.job.value);
    m.setForce(v.force);
  });
}
template <>
Result<StopJob> from_bytes(const Bytes& bytes) {
  return read<wire::StopJob>(bytes, [](wire::StopJob::Reader m) { return StopJob{JobId{m.getJob()}, m.getForce()}; });
}

Bytes to_bytes(const SetNodeScheduling& v) {
  return write<wire::SetNodeScheduling>([&](wire::SetNodeScheduling::Builder m) {
    m.setNode(v.node.value);
    m.setScheduling(number(v.scheduling));
    m.setDeadlineMs(v.deadline_ms);
  });
}
template <>
Result<SetNodeScheduling> from_bytes(const Bytes& bytes) {
  return read<wire::SetNodeScheduling>(bytes, [](wire::SetNodeScheduling::Reader m) {
    KJ_REQUIRE(m.getDeadlineMs() <= SetNodeScheduling::kMaxDeadlineMs, "a deadline is too far away");
    return SetNodeScheduling{NodeId{m.getNode()}, checked<NodeScheduling>(m.getScheduling(), 3, "scheduling of a node"), m.getDeadlineMs()};
  });
}

Bytes to_bytes(const JobRef& v) {
  return write<wire::JobRef>([&](wire::JobRef::Builder m) { m.setJob(v.job.value); });
}
template <>
Result<JobRef> from_bytes(const Bytes& bytes) {
  return read<wire::JobRef>(bytes, [](wire::JobRef::Reader m) { return JobRef{JobId{m.getJob()}}; });
}

Bytes to_bytes(const KillActor& v) {
  return write<wire::KillActor>([&](wire::KillActor::Builder m) {
    m.setActor(v.actor.value);
    m.setRestart(v.restart);
    m.setHandOn(v.hand_on);
  });
}
template <>
Result<KillActor> from_bytes(const Bytes& bytes) {
  return read<wire::KillActor>(bytes,
                               [](wire::KillActor::Reader m) { return KillActor{ActorId{m.getActor()}, m.getRestart(), m.getHandOn()}; });
}

Bytes to_bytes(const GetCreationSpec& v) {
  return write<wire::GetCreationSpec>([&](wire::GetCreationSpec::Builder m) { m.setWorker(v.worker.value); });
}
template <>
Result<GetCreationSpec> from_bytes(const Bytes& bytes) {
  return read<wire::GetCreationSpec>(bytes, [](wire::GetCreationSpec::Reader m) { return GetCreationSpec{WorkerId{m.getWorker()}}; });
}

Bytes to_bytes(const WorkerBlocked& v) {
  return write<wire::WorkerBlocked>([&](wire::WorkerBlocked::Builder m) {
    m.setWorker(v.worker.value);
    m.setBlocked(v.blocked);
  });
}
template <>
Result<WorkerBlocked> from_bytes(const Bytes& bytes) {
  return read<wire::WorkerBlocked>(bytes,
                                   [](wire::WorkerBlocked::Reader m) { return WorkerBlocked{WorkerId{m.getWorker()}, m.getBlocked()}; });
}

Bytes to_bytes(const GroupSpec& v) {
  return write<wire::CreateGroup>([&](wire::CreateGroup::Builder m) {
    m.setId(v.id.value);
    m.setJob(v.job.value);
    m.setName(v.name);
    m.setNameSpace(v.name_space);
    m.setStrategy(number(v.strategy));
    auto bundles = m.initBundles(count(v.bundles));
    for (unsigned i = 0; i < v.bundles.size(); ++i) {
      fill_resources(bundles[i].initResources(count(v.bundles[i].all())), v.bundles[i]);
    }
    fill_labels(m.initLabels(count(v.labels)), v.labels);
    m.setDetached(v.detached);
  });
}
template <>
Result<GroupSpec> from_bytes(const Bytes& bytes) {
  return read<wire::CreateGroup>(bytes, [](wire::CreateGroup::Reader m) {
    GroupSpec v;
    v.id = GroupId{m.getId()};
    v.job = JobId{m.getJob()};
    v.name = text(m.getName());
    v.name_space = text(m.getNameSpace());
    v.strategy = read_strategy(m.getStrategy());
    check_size(m.getBundles(), GroupSpec::kMaxBundles, "bundles");
    for (const auto b : m.getBundles()) v.bundles.push_back(read_resources(b.getResources()));
    v.labels = read_labels(m.getLabels());
    v.detached = m.getDetached();
    KJ_REQUIRE(v.name.size() <= GangSpec::kMaxName && v.name_space.size() <= GangSpec::kMaxName, "a name is too long");
    return v;
  });
}

Bytes to_bytes(const GroupRef& v) {
  return write<wire::GroupRef>([&](wire::GroupRef::Builder m) { m.setGroup(v.group.value); });
}
template <>
Result<GroupRef> from_bytes(const Bytes& bytes) {
  return read<wire::GroupRef>(bytes, [](wire::GroupRef::Reader m) { return GroupRef{GroupId{m.getGroup()}}; });
}

Bytes to_bytes(const GroupRow& v) {
  return write<wire::GroupRow>([&](wire::GroupRow::Builder m) { fill(m, v); });
}
template <>
Result<GroupRow> from_bytes(const Bytes& bytes) {
  return read<wire::GroupRow>(bytes, read_group);
}

Bytes to_bytes(const FindActor& v) {
  return write<wire::FindActor>([&](wire::FindActor::Builder m) {
    m.setName(v.name);
    m.setNameSpace(v.name_space);
  });
}
template <>
Result<FindActor> from_bytes(const Bytes& bytes) {
  return read<wire::FindActor>(bytes, [](wire::FindActor::Reader m) { return FindActor{text(m.getName()), text(m.getNameSpace())}; });
}

Bytes to_bytes(const FoundActor& v) {
  return write<wire::FoundActor>([&](wire::FoundActor::Builder m) {
    fill(m.initRow(), v.row);
    m.setHandle(data_of(v.handle));
  });
}
template <>
Result<FoundActor> from_bytes(const Bytes& bytes) {
  return read<wire::FoundActor>(bytes,
                                [](wire::FoundActor::Reader m) { return FoundActor{read_actor(m.getRow()), bytes_of(m.getHandle())}; });
}

Bytes to_bytes(const ActorRef& v) {
  return write<wire::ActorRef>([&](wire::ActorRef::Builder m) { m.setActor(v.actor.value); });
}
template <>
Result<ActorRef> from_bytes(const Bytes& bytes) {
  return read<wire::ActorRef>(bytes, [](wire::ActorRef::Reader m) { return ActorRef{ActorId{m.getActor()}}; });
}

Bytes to_bytes(const HostActor& v) {
  return write<wire::HostActor>([&](wire::HostActor::Builder m) {
    m.setActor(v.actor.value);
    m.setClassName(v.class_name);
    m.setGangKey(v.gang_key);
    m.setRank(v.rank);
    m.setWorldSize(v.world_size);
    m.setWorker(v.worker.value);
    m.setJob(v.job.value);
    m.setPid(v.pid);
    m.setEndpoint(v.endpoint);
    fill_pairs(m.initAttributes(count(v.attributes)), v.attributes);
  });
}
template <>
Result<HostActor> from_bytes(const Bytes& bytes) {
  return read<wire::HostActor>(bytes, [](wire::HostActor::Reader m) {
    KJ_REQUIRE(m.getWorldSize() >= 1 && m.getWorldSize() <= static_cast<int>(GangSpec::kMaxActors), "a gang's size out of range");
    KJ_REQUIRE(m.getRank() >= 0 && m.getRank() < m.getWorldSize(), "a rank outside its gang");
    return HostActor{ActorId{m.getActor()}, text(m.getClassName()),     text(m.getGangKey()), m.getRank(),
                     m.getWorldSize(),      WorkerId{m.getWorker()},    JobId{m.getJob()},    m.getPid(),
                     text(m.getEndpoint()), read_map(m.getAttributes())};
  });
}

Bytes to_bytes(const HostedActor& v) {
  return write<wire::HostedActor>([&](wire::HostedActor::Builder m) {
    m.setGang(v.gang.value);
    m.setGeneration(v.generation);
    auto members = m.initMembers(count(v.members));
    for (unsigned i = 0; i < v.members.size(); ++i) members.set(i, v.members[i].value);
  });
}
template <>
Result<HostedActor> from_bytes(const Bytes& bytes) {
  return read<wire::HostedActor>(bytes, [](wire::HostedActor::Reader m) {
    HostedActor v{GangId{m.getGang()}, m.getGeneration(), {}};
    check_size(m.getMembers(), GangSpec::kMaxActors, "members of a gang");
    for (const auto id : m.getMembers()) v.members.push_back(ActorId{id});
    return v;
  });
}

Bytes to_bytes(const SetAttributes& v) {
  return write<wire::SetAttributes>([&](wire::SetAttributes::Builder m) {
    m.setActor(v.actor.value);
    fill_pairs(m.initAttributes(count(v.attributes)), v.attributes);
  });
}
template <>
Result<SetAttributes> from_bytes(const Bytes& bytes) {
  return read<wire::SetAttributes>(
      bytes, [](wire::SetAttributes::Reader m) { return SetAttributes{ActorId{m.getActor()}, read_map(m.getAttributes())}; });
}

Bytes to_bytes(const ListRequest& v) {
  return write<wire::ListRequest>([&](wire::ListRequest::Builder m) {
    m.setWhat(number(v.what));
    m.setJob(v.job.value);
    m.setAfter(v.after);
  });
}
template <>
Result<ListRequest> from_bytes(const Bytes& bytes) {
  return read<wire::ListRequest>(bytes, [](wire::ListRequest::Reader m) {
    return ListRequest{checked<ListRequest::What>(m.getWhat(), 5, "kind of list"), JobId{m.getJob()}, m.getAfter()};
  });
}

Bytes to_bytes(const ListReply& v) {
  return write<wire::ListReply>([&](wire::ListReply::Builder m) {
    fill_rows(m.initActors(count(v.actors)), v.actors);
    fill_rows(m.initNodes(count(v.nodes)), v.nodes);
    fill_rows(m.initWorkers(count(v.workers)), v.workers);
    fill_rows(m.initJobs(count(v.jobs)), v.jobs);
    fill_rows(m.initGroups(count(v.groups)), v.groups);
    m.setLast(v.last);
  });
}
template <>
Result<ListReply> from_bytes(const Bytes& bytes) {
  return read<wire::ListReply>(bytes, [](wire::ListReply::Reader m) {
    return ListReply{read_rows<ActorRow>(m.getActors(), read_actor),    read_rows<NodeRow>(m.getNodes(), read_node),
                     read_rows<WorkerRow>(m.getWorkers(), read_worker), read_rows<JobRow>(m.getJobs(), read_job),
                     read_rows<GroupRow>(m.getGroups(), read_group),    m.getLast()};
  });
}

Bytes to_bytes(const ClusterStatus& v) {
  return write<wire::StatusReply>([&](wire::StatusReply::Builder m) {
    m.setSession(v.session);
    m.setHeadPid(v.head_pid);
    fill_resources(m.initTotal(count(v.total.all())), v.total);
    fill_resources(m.initAvailable(count(v.available.all())), v.available);
    m.setNumNodes(v.num_nodes);
    m.setNumWorkers(v.num_workers);
    m.setNumActors(v.num_actors);
    m.setNumJobs(v.num_jobs);
    fill_texts(m.initPending(count(v.pending)), v.pending);
    m.setStore(v.store);
    fill_texts(m.initHeads(count(v.heads)), v.heads);
    m.setWantedBack(v.wanted_back);
  });
}
template <>
Result<ClusterStatus> from_bytes(const Bytes& bytes) {
  return read<wire::StatusReply>(bytes, [](wire::StatusReply::Reader m) {
    return ClusterStatus{text(m.getSession()),
                         m.getHeadPid(),
                         read_resources(m.getTotal()),
                         read_resources(m.getAvailable()),
                         m.getNumNodes(),
                         m.getNumWorkers(),
                         m.getNumActors(),
                         m.getNumJobs(),
                         read_texts(m.getPending()),
                         text(m.getStore()),
                         read_texts(m.getHeads()),
                         m.getWantedBack()};
  });
}

Bytes to_bytes(const ActorRow& v) {
  return write<wire::ActorRow>([&](wire::ActorRow::Builder m) { fill(m, v); });
}
template <>
Result<ActorRow> from_bytes(const Bytes& bytes) {
  return read<wire::ActorRow>(bytes, read_actor);
}

Bytes to_bytes(const JobRow& v) {
  return write<wire::JobRow>([&](wire::JobRow::Builder m) { fill(m, v); });
}
template <>
Result<JobRow> from_bytes(const Bytes& bytes) {
  return read<wire::JobRow>(bytes, read_job);
}

Bytes to_bytes(const Warning& v) {
  return write<wire::Warning>([&](wire::Warning::Builder m) { m.setText(v.text); });
}
template <>
Result<Warning> from_bytes(const Bytes& bytes) {
  return read<wire::Warning>(bytes, [](wire::Warning::Reader m) { return Warning{text(m.getText())}; });
}

}  // namespace shoal::actors
