// The commits of the head's decisions, and the effects that wait for them: actions and answers. No effect takes place before the changes
// that it follows from are stored. Effects keep their order, and simultaneous events share a commit.
//
// While the store fails (a locked database, a full disk), effects wait and each retry() tries the commit again. After `refuse_after`,
// writable() returns an error, and requests that wait get it as well: what they have made is undone, so that it takes no effect after
// their clients have got an error. Readers, and requests that were refused or made nothing, do not wait for a store that fails. One commit
// at a time is under way.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <variant>
#include <vector>

#include "actors/protocol/wire/methods.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/head/fence.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

class Commits {
 public:
  struct Options {
    runtime::Duration refuse_after = std::chrono::seconds(2);  // how long commits fail before writable() returns an error
    std::size_t max_refused = 200;                             // requests refused in one turn of the loop
  };

  // The references outlive this object. `perform` may cause new events.
  Commits(runtime::Clock& clock, ClusterState& state, Store& store, Fence& fence, runtime::Log log, Options options,
          std::function<void(const Action&)> perform);
  ~Commits() { *alive_ = false; }

  // Queues an action that the cluster state did not decide.
  void perform(Action action) { effects_.emplace_back(std::move(action)); }
  // Answers a request. One without effect on the stored state is answered at once, unless its answer may show changes that are not stored
  // yet.
  void answer(actors::Effect effect, runtime::Responder responder, Result<runtime::Message> result);
  // `created` is undone if the request that is answered next is refused later. It is empty if that request repeats another or finds what
  // exists. Without a call of set_created(), what the request has changed is not undone.
  void set_created(Created created) { created_ = std::move(created); }
  // As set_created(), for a request that an action answers (AnswerHosted).
  void await(Created created);
  // Returns true if a request made this actor or group, and it is not stored. A gang is named by its first actor.
  bool unstored(ActorId id) const { return contains(id.value); }
  bool unstored(GroupId id) const { return contains(id.value); }
  // Takes the actions of the cluster state's last steps and schedules a commit of its changes. If no caller awaits these, the commit may
  // wait for a moment, so that others join it.
  enum class Awaited { kYes, kNo };
  void settle(Awaited awaited = Awaited::kYes);
  // Tries a commit that failed again.
  void retry();
  Result<void> writable() const;

 private:
  struct Answer {
    std::optional<runtime::Responder> responder;  // not set if an action answers the request
    Result<runtime::Message> result;
    actors::Effect effect;
    std::optional<Created> created;

    // Returns true if the answer would state, or depends on, what is not stored.
    bool depends() const { return effect != actors::Effect::kNone && result && !(created && created->empty()); }
    bool refusable() const { return depends() && effect == actors::Effect::kChange; }
  };
  using Effect = std::variant<Action, Answer>;
  using Effects = std::vector<Effect>;
  struct Unsaved {
    Error why;
    runtime::TimePoint since;
  };
  enum class Due { kNone, kInAMoment, kSoon };

  void flush();
  void hold(Answer answer);
  void answer_readers();
  // Takes the latest requests that wait, at most max_refused.
  std::vector<Answer> take_refusable();
  // Refuses some of the requests that wait. Returns true once none of them is left.
  bool refuse_some(const Error& why);
  bool contains(std::uint64_t id) const { return unstored_.contains(id) || storing_.contains(id); }
  void committed(const std::vector<Record>& records, const Result<void>& result);

  runtime::Clock& clock_;
  ClusterState& state_;
  Store& store_;
  Fence& fence_;
  const runtime::Log log_;
  const Options options_;
  const std::function<void(const Action&)> perform_;
  Effects effects_;
  Effects committing_;  // effects of the commit under way
  // A commit is under way, or its effects take place at present.
  bool busy_ = false;
  Due due_ = Due::kNone;  // when the next commit begins
  std::optional<Created> created_;
  // Ids of what requests have made and is not stored. storing_: a commit of it is under way, or has failed.
  std::unordered_set<std::uint64_t> unstored_, storing_;
  std::optional<Unsaved> unsaved_;  // set while the last commit is one that failed
  runtime::Timer flushing_, refusing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
