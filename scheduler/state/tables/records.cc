#include <algorithm>

#include "actors/protocol/wire/convert.h"
#include "actors/protocol/wire/head_messages.h"
#include "scheduler/state/tables/job_table.h"
#include "scheduler/state/tables/records.capnp.h"
#include "scheduler/state/tables/rows.h"

namespace shoal::scheduler::rows {

using runtime::read;
using runtime::write;

namespace {

template <class Id>
std::vector<Id> read_ids(capnp::List<std::uint64_t>::Reader list) {
  std::vector<Id> out;
  for (const auto id : list) out.push_back(Id{id});
  return out;
}

template <class Ids>
void fill_ids(capnp::List<std::uint64_t>::Builder list, const Ids& ids) {
  unsigned i = 0;
  for (const auto id : ids) list.set(i++, id.value);
}

template <class T>
Result<T> kept(Result<T> row) {
  if (row) return row;
  return fail(data_loss("a record of the head's state cannot be read: " + row.error().message()));
}

}  // namespace

Bytes to_record(const Node& v) {
  actors::NodeRow row = v.row;
  row.available = {};
  return write<actors::wire::NodeRow>([&](auto m) { fill(m, row); });
}
template <>
Result<Node> from_record(const Bytes& record) {
  return kept(read<actors::wire::NodeRow>(record, [](auto m) {
    Node v;
    read_into(m, v.row);
    return v;
  }));
}

Bytes to_record(const actors::ActorRow& v) { return to_bytes(v); }
template <>
Result<actors::ActorRow> from_record(const Bytes& record) {
  return kept(actors::from_bytes<actors::ActorRow>(record));
}

Bytes to_record(const Worker& v) {
  return write<records::Worker>([&](records::Worker::Builder m) {
    fill(m.initRow(), v.row);
    actors::Resources held = v.held;
    held.set_units("CPU", held.units("CPU") + v.lent);
    fill(m.initHeld(length(held)), held);
    m.setGroup(v.group.value);
    m.setBundle(v.bundle);
    m.setActor(v.actor.value);
    m.setLaunched(v.launched);
    m.setLeaving(v.leaving);
  });
}
template <>
Result<Worker> from_record(const Bytes& record) {
  return kept(read<records::Worker>(record, [](records::Worker::Reader m) {
    Worker v;
    read_into(m.getRow(), v.row);
    read_into(m.getHeld(), v.held);
    v.group = GroupId{m.getGroup()};
    v.bundle = m.getBundle();
    v.actor = ActorId{m.getActor()};
    v.launched = m.getLaunched();
    v.leaving = m.getLeaving();
    return v;
  }));
}

Bytes to_record(const Job& v) {
  return write<records::Job>([&](records::Job::Builder m) {
    fill(m.initRow(), v.row);
    if (!v.wants.empty()) {  // stored once, since thousands of ranks have the same
      fill(m.initLaunches(1)[0], v.launch);
      fill(m.initWants(1)[0].initAmounts(length(v.wants[0])), v.wants[0]);
    }
    m.setAddress(v.address);
    m.setPort(v.port);
    if (!v.processes.empty()) fill_ids(m.initPlaced(actors::length(v.placed)), v.placed);  // a job that has not started is placed anew
    fill_ids(m.initProcesses(actors::length(v.processes)), v.processes);
    m.setDriver(v.driver.value);
    m.setAttached(v.attached);
    m.setDetached(v.detached);
    m.setStopping(v.stopping);
    fill_ids(m.initNodes(actors::length(v.nodes)), v.nodes);
    m.setOrder(v.order);
  });
}
template <>
Result<Job> from_record(const Bytes& record) {
  return kept(read<records::Job>(record, [](records::Job::Reader m) {
    Job v;
    read_into(m.getRow(), v.row);
    if (m.getLaunches().size() > 0) read_into(m.getLaunches()[0], v.launch);
    KJ_REQUIRE(v.row.num_workers <= actors::GangSpec::kMaxActors, "too many workers");
    if (m.getWants().size() > 0) {
      actors::Resources wants;
      read_into(m.getWants()[0].getAmounts(), wants);
      v.wants.assign(std::max<std::size_t>(1, v.row.num_workers), wants);
    }
    v.address = runtime::text(m.getAddress());
    v.port = m.getPort();
    if (v.port == 0) take_meeting_from_launch(v);
    v.placed = read_ids<NodeId>(m.getPlaced());
    v.processes = read_ids<WorkerId>(m.getProcesses());
    v.driver = WorkerId{m.getDriver()};
    v.attached = m.getAttached();
    v.detached = m.getDetached();
    v.stopping = m.getStopping();
    for (const auto id : m.getNodes()) v.nodes.insert(NodeId{id});
    v.order = m.getOrder();
    KJ_REQUIRE(v.processes.empty() || (v.processes.size() == v.placed.size() && v.processes.size() == v.wants.size()),
               "a job's processes and places differ");
    return v;
  }));
}

Bytes to_record(const Gang& v) {
  const Bytes spec = to_bytes(v.spec);
  return write<records::Gang>([&](records::Gang::Builder m) {
    m.setSpec({reinterpret_cast<const capnp::byte*>(spec.data()), spec.size()});
    m.setOrder(v.order);
  });
}
template <>
Result<Gang> from_record(const Bytes& record) {
  return kept(read<records::Gang>(record, [](records::Gang::Reader m) -> Result<Gang> {
    Gang v;
    SHOAL_TRY(v.spec, actors::from_bytes<actors::GangSpec>(Bytes::copy_of(m.getSpec().begin(), m.getSpec().size())));
    v.order = m.getOrder();
    if (v.spec.actors.empty()) return fail(data_loss("a gang without actors"));
    return v;
  }));
}

Bytes to_record(const Group& v) {
  return write<records::Group>([&](records::Group::Builder m) {
    fill(m.initRow(), v.row);
    fill(m.initLabels(actors::length(v.labels)), v.labels);
    m.setOrder(v.order);
    m.setTogether(v.together);
  });
}
template <>
Result<Group> from_record(const Bytes& record) {
  return kept(read<records::Group>(record, [](records::Group::Reader m) {
    Group v;
    read_into(m.getRow(), v.row);
    read_into(m.getLabels(), v.labels, actors::GroupSpec::kMaxBundles, "labels of bundles", actors::LabelMatch::kMax, "labels");
    KJ_REQUIRE(v.labels.empty() || v.labels.size() == v.row.bundles.size(), "labels of other bundles");
    v.order = m.getOrder();
    v.together = runtime::text(m.getTogether());
    return v;
  }));
}

}  // namespace shoal::scheduler::rows
