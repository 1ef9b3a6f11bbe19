#include "actors/session/handles.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace shoal::actors {

struct Handles::State : std::enable_shared_from_this<State> {
  struct Made {
    Making making;
    std::optional<ObjectKey> stand;
  };
  struct Gone {
    ActorId actor;
    std::optional<Stand> stand;
  };
  State(References& r, Ways w) : references(r), ways(std::move(w)) {}

  void gone(Gone handle) {
    if (getpid() != pid) return;
    const std::lock_guard lock(mutex);
    if (over) return;
    untold.push_back(std::move(handle));
    if (untold.size() > 1) return;
    ways.post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->attend();
    });
  }
  bool ended() {
    const std::lock_guard lock(mutex);
    return over;
  }

  // ---- loop only ----
  void attend() {
    std::vector<Gone> handles;
    {
      const std::lock_guard lock(mutex);
      if (over) return;
      handles.swap(untold);
    }
    for (auto& h : handles) {
      if (h.stand) {
        ways.keep_until_answered(h.actor, std::move(h.stand->hold));  // still needed by open calls
      } else {
        tell(h.actor);
      }
    }
  }
  void tell(ActorId actor) {
    auto one = made.extract(actor);
    if (one.empty()) return;
    const auto how = std::make_shared<const Made>(std::move(one.mapped()));
    told[actor] = how;
    ways.tell(actor).then([weak = weak_from_this(), actor, how](const Result<Value>& answered) {
      const auto self = weak.lock();
      if (!self || self->ended()) return;
      self->told.erase(actor);
      if (answered || !is_lost(answered.error())) return;
      self->made[actor] = *how;
      self->again[actor] = self->ways.later([weak, actor] {
        const auto state = weak.lock();
        if (!state || state->ended()) return;
        const auto timer = state->again.extract(actor);  // destroyed when this returns
        state->tell(actor);
      });
    });
  }
  // The release was lost: the connection broke, the actor restarted, or its queue is full.
  static bool is_lost(const Error& error) { return error.reason() == "ActorUnavailable" || error.code() == Code::kResourceExhausted; }
  Stand stand() {
    const ObjectKey object = ways.new_object();
    return {object, references.hold({object})};
  }
  void watch(ActorId actor, const ObjectKey& object) {
    ways.get(object).then([weak = weak_from_this(), actor, object](const Result<Value>& got) {
      const auto self = weak.lock();
      if (!self || self->ended() || got) return;
      if (got.error().reason() == "ObjectFreed") self->tell(actor);
      // This node released the object, not its home, or the home is unreachable.
      if (got.error().reason() == "ObjectLetGo" || got.error().reason() == "ObjectLost") self->watch(actor, object);
    });
  }

  References& references;
  const Ways ways;
  const pid_t pid = getpid();
  ActorId own;
  std::optional<Stand> own_stand;
  std::map<ActorId, Made> made;
  std::map<ActorId, std::shared_ptr<const Made>> told;  // released, without an answer yet
  std::map<ActorId, runtime::Timer> again;
  std::vector<std::shared_ptr<const void>> pinned;

  std::mutex mutex;
  std::vector<Gone> untold;
  bool over = false;
};

class Handles::Counted {
 public:
  Counted(std::shared_ptr<State> state, ActorId actor, std::optional<Stand> stand)
      : state_(std::move(state)), actor_(actor), stand_(std::move(stand)) {}
  ~Counted() { state_->gone({actor_, std::move(stand_)}); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  const Stand& stand() const {
    if (!stand_) {
      stand_ = state_->stand();
      state_->made[actor_].stand = stand_->object;
      state_->watch(actor_, stand_->object);
    }
    return *stand_;
  }

 private:
  const std::shared_ptr<State> state_;
  const ActorId actor_;
  mutable std::optional<Stand> stand_;  // loop only; nullopt for an actor made here whose handles have not left
};

Handles::Handles(References& references, Ways ways) : state_(std::make_shared<State>(references, std::move(ways))) {}

Handles::~Handles() {
  std::vector<State::Gone> untold;
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
  untold.swap(state_->untold);
  state_->made.clear();
  state_->told.clear();
  state_->again.clear();
  state_->pinned.clear();
  state_->own_stand.reset();
}

void Handles::is_of(ActorId actor) { state_->own = actor; }

Handles::Share Handles::made(ActorId actor, Making making) {
  state_->made[actor] = {std::move(making), std::nullopt};
  return std::make_shared<const Counted>(state_, actor, std::nullopt);
}

Handles::Share Handles::borrowed(ActorId actor, const ObjectKey& stand) {
  if (actor == state_->own) return nullptr;
  return std::make_shared<const Counted>(state_, actor, Stand{stand, state_->references.hold({stand})});
}

std::optional<Handles::Stand> Handles::leaves(ActorId actor, const Share& share) {
  if (actor && actor == state_->own) {
    if (!state_->own_stand) state_->own_stand = state_->stand();
    return state_->own_stand;
  }
  if (!share) return std::nullopt;
  return share->stand();
}

bool Handles::may_end() {
  State& s = *state_;
  if (s.made.contains(s.own)) return false;
  const auto stand = std::exchange(s.own_stand, std::nullopt);
  if (!stand) return true;
  s.made[s.own] = {{}, stand->object};
  s.watch(s.own, stand->object);
  return false;
}

std::vector<Handles::Left> Handles::left() const {
  std::vector<Left> out;
  const auto add = [&out](ActorId actor, const State::Made& made) { out.push_back({actor, made.making, made.stand}); };
  for (const auto& [actor, made] : state_->made) add(actor, made);
  for (const auto& [actor, made] : state_->told) add(actor, *made);
  return out;
}

void Handles::adopt(Left left) {
  const ActorId actor = left.actor;
  const auto stand = left.stand;
  state_->made[actor] = {std::move(left.making), stand};
  if (stand) {
    state_->watch(actor, *stand);
  } else {
    state_->gone({actor, std::nullopt});
  }
}

void Handles::pin(std::shared_ptr<const void> what) { state_->pinned.push_back(std::move(what)); }

}  // namespace shoal::actors
