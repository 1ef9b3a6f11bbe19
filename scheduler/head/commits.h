// The commits of the head's decisions, and the effects that wait for them: actions and answers. No effect takes place before the changes
// that it follows from are stored. Effects keep their order, and simultaneous events share a commit.
//
// While the store fails (a locked database, a full disk), effects wait and each retry() tries the commit again. After `refuse_after`,
// writable() returns an error, and requests that wait get it as well: what they asked for is undone, so that it does not happen later,
// unasked. One commit at a time is under way.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
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
    runtime::Duration refuse_after{};  // how long commits fail before writable() returns an error
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
  // `undo` reverts what the request that is answered next has decided, if that is refused later; empty if it cannot be reverted.
  using Undo = std::function<void(const Error& why)>;
  void set_undo(Undo undo) { undo_ = std::move(undo); }
  // For an undo: drops those starts of workers that wait for a commit and fulfil `these`. Returns the workers.
  std::vector<WorkerId> drop_starts(const std::function<bool(const actors::StartWorker&)>& these);
  // Takes the actions of the cluster state's last steps and schedules a commit of its changes. If no caller awaits these, the commit may
  // wait for a moment, so that others join it.
  enum class Awaited { kYes, kNo };
  void settle(Awaited awaited = Awaited::kYes);
  // Tries a commit that failed again.
  void retry();
  Result<void> writable() const;

 private:
  struct Answer {
    runtime::Responder responder;
    Result<runtime::Message> result;
    actors::Effect effect;
    Undo undo;
  };
  using Effects = std::vector<std::variant<Action, Answer>>;
  struct Unsaved {
    Error why;
    runtime::TimePoint since;
  };
  enum class Due { kNone, kInAMoment, kSoon };

  void flush();
  void refuse_waiting(const Error& why);
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
  Undo undo_;
  std::optional<Unsaved> unsaved_;  // set while the last commit is one that failed
  runtime::Timer flushing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
