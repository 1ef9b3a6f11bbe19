// The commits of the head's decisions, and their effects: actions and answers. No effect takes place before the changes behind it are
// stored. Effects keep their order, and simultaneous events share a commit.
//
// While the store fails (a locked database, a full disk), effects wait and each retry() commits again. After `refuse_after`, writable()
// refuses. One commit at a time is under way.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "actors/wire/methods.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/head/fence.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

class Commits {
 public:
  struct Options {
    runtime::Duration refuse_after{};  // time of failing commits until writable() refuses
  };

  // The references outlive it. `perform` may cause events.
  Commits(runtime::Clock& clock, ClusterState& state, Store& store, Fence& fence, runtime::Log log, Options options,
          std::function<void(const Action&)> perform);
  ~Commits() { *alive_ = false; }

  // Performs an action that is no decision of the state.
  void perform(Action action) { effects_.emplace_back(std::move(action)); }
  // Answers a request. A read-only one is answered at once, unless it may have seen changes that are being stored.
  void answer(actors::Effect effect, runtime::Responder responder, Result<runtime::Message> result);
  // Takes the actions of the state's last steps and schedules a commit of its changes. If no caller awaits them, they may wait a moment for
  // a commit that they can share.
  enum class Awaited { kYes, kNo };
  void settle(Awaited awaited = Awaited::kYes);
  // Commits again what could not be stored.
  void retry() {
    if (unsaved_) flush();
  }
  Result<void> writable() const;

 private:
  struct Answer {
    runtime::Responder responder;
    Result<runtime::Message> result;
  };
  using Effects = std::vector<std::variant<Action, Answer>>;
  struct Unsaved {
    Error why;
    runtime::TimePoint since;
  };
  enum class Due { kNone, kInAMoment, kSoon };

  void flush();
  void committed(const std::vector<Record>& records, const Result<void>& result);

  runtime::Clock& clock_;
  ClusterState& state_;
  Store& store_;
  Fence& fence_;
  const runtime::Log log_;
  const Options options_;
  const std::function<void(const Action&)> perform_;
  Effects effects_;
  Effects committing_;              // effects of the commit under way
  bool busy_ = false;               // a commit is under way, or its effects are taking place
  Due due_ = Due::kNone;            // the next commit
  std::optional<Unsaved> unsaved_;  // if the last commit failed
  runtime::Timer flushing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
