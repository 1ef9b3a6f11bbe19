// Events of actors: requests, kills, actors hosted by existing processes, and names.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/bounds.h"
#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/explain.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using rows::Gang;

namespace {

// The worker whose end ends the gang; id 0 if there is none. Returns Cancelled/CreatorEnded if that worker has ended already.
Result<WorkerId> creator_of(const Parts& s, const actors::GangSpec& spec) {
  if (!spec.creator || spec.detached) return WorkerId();
  const auto* const w = s.workers.living(spec.creator);
  if (w == nullptr) return fail(cancelled("the process that requested it has ended").with_reason("CreatorEnded"));
  return w->actor ? spec.creator : WorkerId();
}

// Returns the gang to be placed, or fails if it can never be.
Result<Gang> checked(const Parts& s, const actors::GangSpec& spec) {
  Gang gang;
  gang.spec = spec;
  for (const auto& a : spec.actors) {
    if (!a.id || s.actors.contains(a.id)) return fail(invalid_argument("actor " + to_string(a.id) + " exists already"));
    gang.wants.push_back(a.resources);
  }
  SHOAL_TRY(gang.spec.creator, creator_of(s, spec));
  SHOAL_OK(check_where(s, gang));
  if (spec.refuse_infeasible && !spec.where.group) {
    const Allowed could = s.nodes.only(s.nodes.index().capacity(), spec.where, gang.wants);
    if (!place(gang.wants, *could)) return fail(infeasible(explain(gang.wants, *could)));
  }
  gang.living = spec.actors.size();
  return gang;
}

// Ends a gang that was not placed and must not wait for room on its node.
void end_without_room(Parts& s, const actors::GangSpec& spec) {
  const ActorRow* const first = s.actors.living(spec.actors[0].id);
  if (!spec.where.node || spec.where.soft || !spec.where.at_once || first == nullptr || first->state != ActorState::kPending) return;
  const std::string why = first->pending_reason.empty() ? "" : ": " + first->pending_reason;
  end_actor(s, first->id,
            resource_exhausted("its required node has no room for it now" + why)
                .with_reason("Unschedulable")
                .with_hint("without _fail_on_unavailable it waits for room"));
}

// Makes `to` the creator of the gangs that `from` made. Two kinds of gangs stay with `from` and end with it. One kind are workers of
// functions, whose own gangs go to `to` in turn. The other are gangs that have not finished starting, since `from` has not sent their
// constructor calls yet.
void hand_on(Parts& s, WorkerId from, WorkerId to) {
  for (const GangId id : s.gangs.take_created_by(from)) {
    const auto& members = s.gangs.at(id).spec.actors;
    const bool functions = actors::is_function_class(members[0].class_name);
    const bool lives = std::all_of(members.begin(), members.end(), [&](const auto& a) {
      const auto row = s.actors.find(a.id);
      return row == s.actors.end() || (row->second.state != ActorState::kPending && row->second.state != ActorState::kStarting) ||
             row->second.num_restarts > 0;
    });
    s.gangs.set_creator(id, functions || !lives ? from : to);
    if (functions) hand_on(s, s.actors.at(members[0].id).worker, to);
  }
}

// Answers a repeated request: an earlier head accepted it and ended before it answered, or the answer was lost with its connection.
Result<void> hosted_again(Parts& s, const actors::HostActor& m, const ActorRow& row) {
  const bool same = row.worker == m.worker && row.class_name == m.class_name && row.rank == m.rank && row.world_size == m.world_size;
  if (!same) return fail(invalid_argument("actor " + to_string(m.actor) + " exists already"));
  if (const Error* const failure = s.hosted.failure_of(m)) return fail(*failure);
  if (row.state == ActorState::kDead) return fail(row.cause.value_or(unavailable("the actor ended").with_reason("ActorDied")));
  if (row.state != ActorState::kAlive) return {};  // the request is answered once its gang is complete
  actors::HostedActor answer{row.gang, row.generation, std::vector<ActorId>(static_cast<std::size_t>(row.world_size))};
  for (const auto& [id, a] : s.actors) {
    if (a.gang == row.gang) answer.members.at(static_cast<std::size_t>(a.rank)) = id;
  }
  s.turn.act(AnswerHosted{m.actor, std::move(answer)});
  return {};
}

}  // namespace

Result<actors::FoundActor> find_actor(const Parts& s, const actors::FindActor& request) {
  const ActorRow* const row = s.actors.named(request.name_space, request.name);
  if (row != nullptr) return actors::FoundActor{*row, s.gangs.at(row->gang).spec.handle};
  return fail(not_found(fmt::format("no living actor is named '{}' in namespace '{}'", request.name, request.name_space))
                  .with_reason("NoSuchName")
                  .with_hint("names belong to a namespace: pass the one of the actor; `shoal list actors` shows both"));
}

Result<std::optional<actors::FoundActor>> on(Parts& s, const GangRequested& event) {
  const auto& spec = event.spec;
  if (spec.actors.empty()) return fail(invalid_argument("the gang has no actors"));
  if (s.jobs.living(spec.job) == nullptr) return fail(not_found("the cluster has no running job " + to_string(spec.job)));
  // A repeated request: an earlier head accepted it and ended before it answered, or the answer was lost with its connection.
  if (const auto known = s.actors.find(spec.actors[0].id); known != s.actors.end() && known->second.gang == spec.id) {
    return std::optional<actors::FoundActor>();
  }
  if (!spec.id || s.gangs.contains(spec.id)) return fail(invalid_argument("gang " + to_string(spec.id) + " exists already"));
  if (!spec.name.empty()) {
    if (auto found = find_actor(s, {spec.name, spec.name_space}); found && spec.get_if_exists) {
      return std::optional(*std::move(found));
    } else if (found) {
      return fail(invalid_argument(fmt::format("an actor named '{}' lives already in namespace '{}'", spec.name, spec.name_space))
                      .with_reason("NameTaken")
                      .with_hint("Please use a different name, or get the existing actor with get_actor or get_if_exists=True"));
    }
  }
  SHOAL_OK(check_bounds(spec));
  SHOAL_TRY(Gang gang, checked(s, spec));
  if (spec.detached) {
    gang.spec.job = s.turn.random.id<JobId>();
    s.jobs.add_detached(gang.spec.job, fmt::format("detached {}", spec.name.empty() ? spec.actors[0].class_name : spec.name),
                        s.turn.unix_ms);
  }
  gang.order = s.turn.next_order++;
  s.actors.request(spec, gang.spec.job);
  s.gangs.request(spec.id, std::move(gang));
  s.queue.add(waiting(s, s.gangs.at(spec.id)));
  place_pending(s);
  explain_newcomer(s);
  end_without_room(s, spec);
  return std::optional<actors::FoundActor>();
}

Result<void> on(Parts& s, const ActorKilled& event) {
  const auto it = s.actors.find(event.actor);
  if (it == s.actors.end()) return fail(not_found("no actor " + to_string(event.actor)));
  const ActorRow& row = it->second;
  if (row.state == ActorState::kDead) return {};
  if (event.restart && row.max_restarts != 0) {
    if (row.worker) s.turn.act(StopWorkerOn{row.node, {row.worker, SIGKILL, 0}});
    return {};
  }
  end_actor(s, event.actor, unavailable("it was killed by shoal.kill").with_reason("Killed"));
  place_pending(s);
  return {};
}

Result<void> on(Parts& s, const WorkerRetired& event) {
  const auto it = s.actors.find(event.actor);
  if (it != s.actors.end() && !actors::is_function_worker(it->second)) {
    return fail(invalid_argument("actor " + to_string(event.actor) + " does not run remote functions: it can be killed, not retired"));
  }
  if (const ActorRow* const row = s.actors.living(event.actor); row != nullptr && s.gangs.contains(row->gang)) {
    hand_on(s, row->worker, s.gangs.at(row->gang).spec.creator);
  }
  return on(s, ActorKilled{event.actor});
}

Result<void> on(Parts& s, const ActorHosted& event) {
  const auto& m = event.actor;
  if (s.jobs.living(m.job) == nullptr) return fail(not_found("the cluster has no running job " + to_string(m.job)));
  const auto* const w = s.workers.living(m.worker);
  if (w == nullptr) return fail(not_found("no running process " + to_string(m.worker)));
  if (const auto known = s.actors.find(m.actor); known != s.actors.end()) return hosted_again(s, m, known->second);
  if (!m.actor) return fail(invalid_argument("the actor has no id"));
  SHOAL_OK(check_bounds(m));
  SHOAL_TRY(const HostedGangs::Gang* const gang, s.hosted.add(m, s.turn.random));
  s.actors.host(m, *w, gang->id);
  if (gang->state != HostedGangs::State::kComplete) return {};
  actors::HostedActor answer{gang->id, 1, {}};
  for (const auto& [rank, id] : gang->members) answer.members.push_back(id);
  for (const auto& [rank, id] : gang->members) {
    s.actors.join_gang(id, answer.generation);
    s.turn.act(NotifyActor{s.actors.at(id)});
    s.turn.act(AnswerHosted{id, answer});
  }
  return {};
}

// No caller waits for an answer, so the actor's job gets a warning.
void on(Parts& s, const AttributesSet& event) {
  const auto& wish = event.attributes;
  const ActorRow* const row = s.actors.living(wish.actor);
  if (row == nullptr) return;
  if (const auto fits = check_bounds(row->attributes, wish); !fits) {
    return s.turn.act(Warn{
        row->job, fmt::format("actor {}({}) keeps its attributes: {}", row->class_name, to_string(wish.actor), fits.error().message())});
  }
  s.actors.set_attributes(wish.actor, wish.attributes);
}

}  // namespace shoal::scheduler
