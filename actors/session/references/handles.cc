#include "actors/session/references/handles.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/owner_process.h"

namespace shoal::actors {

struct Handles::State : std::enable_shared_from_this<State> {
  struct Created {
    Making making;
    std::optional<ObjectKey> token;
  };
  struct Gone {
    ActorId actor;
    std::optional<LifetimeToken> token;
  };
  State(References& r, Actions w) : references(r), actions(std::move(w)) {}

  void gone(Gone handle) {
    if (process.forked()) return;
    const std::lock_guard lock(mutex);
    if (over) return;
    unreported.push_back(std::move(handle));
    if (unreported.size() > 1) return;
    actions.post([weak = weak_from_this()] {
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
      handles.swap(unreported);
    }
    for (auto& h : handles) {
      if (h.token) {
        // Open calls on the actor still need the token: once that is freed, the actor is released.
        actions.keep_until_answered(h.actor, std::move(h.token->hold));
      } else {
        release(h.actor);
      }
    }
  }
  void release(ActorId actor) {
    auto one = created.extract(actor);
    if (one.empty()) return;
    const auto how = std::make_shared<const Created>(std::move(one.mapped()));
    reported[actor] = how;
    actions.release(actor).then([weak = weak_from_this(), actor, how](const Result<Value>& answered) {
      const auto self = weak.lock();
      if (!self || self->ended()) return;
      self->reported.erase(actor);
      if (answered || !is_lost(answered.error())) return;
      self->created[actor] = *how;
      self->again[actor] = self->actions.later([weak, actor] {
        const auto state = weak.lock();
        if (!state || state->ended()) return;
        const auto timer = state->again.extract(actor);  // the timer, which has called this function, lives until it returns
        state->release(actor);
      });
    });
  }
  // True for the error of a kRelease that the actor did not get: the connection broke, the actor restarted, or its queue is full.
  static bool is_lost(const Error& error) { return error.reason() == "ActorUnavailable" || error.code() == Code::kResourceExhausted; }
  LifetimeToken token() {
    const ObjectKey object = actions.new_object();
    return {object, references.hold({object})};
  }
  void watch(ActorId actor, const ObjectKey& object) {
    actions.get(object).then([weak = weak_from_this(), actor, object](const Result<Value>& got) {
      const auto self = weak.lock();
      if (!self || self->ended() || got) return;
      if (got.error().reason() == "ObjectFreed") self->release(actor);
      // The object still exists: this node gave up its own reference, or the home is unreachable. So wait again.
      if (got.error().reason() == "ObjectLetGo" || got.error().reason() == "ObjectLost") self->watch(actor, object);
    });
  }

  References& references;
  const Actions actions;
  const OwnerProcess process;
  ActorId own;
  std::optional<LifetimeToken> own_token;
  std::map<ActorId, Created> created;
  std::map<ActorId, std::shared_ptr<const Created>> reported;  // released actors that have not answered yet
  std::map<ActorId, runtime::Timer> again;
  std::vector<std::shared_ptr<const void>> pinned;

  std::mutex mutex;
  std::vector<Gone> unreported;
  bool over = false;
};

class Handles::Counted {
 public:
  Counted(std::shared_ptr<State> state, ActorId actor, std::optional<LifetimeToken> token)
      : state_(std::move(state)), actor_(actor), token_(std::move(token)) {}
  ~Counted() { state_->gone({actor_, std::move(token_)}); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  const LifetimeToken& token() const {
    if (!token_) {
      token_ = state_->token();
      state_->created[actor_].token = token_->object;
      state_->watch(actor_, token_->object);
    }
    return *token_;
  }

 private:
  const std::shared_ptr<State> state_;
  const ActorId actor_;
  // Loop thread only. nullopt while no handle of an actor made here has left this process.
  mutable std::optional<LifetimeToken> token_;
};

Handles::Handles(References& references, Actions actions) : state_(std::make_shared<State>(references, std::move(actions))) {}

Handles::~Handles() {
  std::vector<State::Gone> unreported;
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
  unreported.swap(state_->unreported);
  state_->created.clear();
  state_->reported.clear();
  state_->again.clear();
  state_->pinned.clear();
  state_->own_token.reset();
}

void Handles::set_own_actor(ActorId actor) { state_->own = actor; }

Handles::Share Handles::add(ActorId actor, Making making) {
  state_->created[actor] = {std::move(making), std::nullopt};
  return std::make_shared<const Counted>(state_, actor, std::nullopt);
}

Handles::Share Handles::borrowed(ActorId actor, const ObjectKey& token) {
  if (actor == state_->own) return nullptr;
  return std::make_shared<const Counted>(state_, actor, LifetimeToken{token, state_->references.hold({token})});
}

std::optional<Handles::LifetimeToken> Handles::leaves(ActorId actor, const Share& share) {
  if (actor && actor == state_->own) {
    if (!state_->own_token) state_->own_token = state_->token();
    return state_->own_token;
  }
  if (!share) return std::nullopt;
  return share->token();
}

bool Handles::may_end() {
  State& s = *state_;
  if (s.created.contains(s.own)) return false;
  const auto token = std::exchange(s.own_token, std::nullopt);
  if (!token) return true;
  s.created[s.own] = {{}, token->object};
  s.watch(s.own, token->object);
  return false;
}

std::vector<Handles::Left> Handles::left() const {
  std::vector<Left> out;
  const auto append = [&out](ActorId actor, const State::Created& created) { out.push_back({actor, created.making, created.token}); };
  for (const auto& [actor, created] : state_->created) append(actor, created);
  for (const auto& [actor, created] : state_->reported) append(actor, *created);
  return out;
}

void Handles::adopt(Left left) {
  const ActorId actor = left.actor;
  const auto token = left.token;
  state_->created[actor] = {std::move(left.making), token};
  if (token) {
    state_->watch(actor, *token);
  } else {
    state_->gone({actor, std::nullopt});
  }
}

void Handles::pin(std::shared_ptr<const void> what) { state_->pinned.push_back(std::move(what)); }

}  // namespace shoal::actors
