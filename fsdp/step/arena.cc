#include "fsdp/step/arena.h"

namespace shoal::fsdp {

using Kind = Action::Kind;

bool ArenaExecutor::carries_out(Kind kind) { return kind >= Kind::kEnter; }

bool ArenaExecutor::waits(Kind kind) {
  switch (kind) {
    case Kind::kEnter:
    case Kind::kLease:
    case Kind::kUnshard:
    case Kind::kAwaitReductions:
    case Kind::kFinishPass:
    case Kind::kOpenWindow:
      return true;
    default:
      return false;
  }
}

template <class F>
Result<void> ArenaExecutor::each_group(int unit, F&& fn) {
  for (const auto& g : machine_.groups(unit))
    SHOAL_OK(fn(*models_[static_cast<std::size_t>(g.model)], static_cast<std::size_t>(g.index), g));
  return {};
}

template <class F>
Result<void> ArenaExecutor::each_model(F&& fn) {
  for (const auto& model : models_) SHOAL_OK(fn(*model));
  return {};
}

Result<void> ArenaExecutor::run(const Action& a) {
  using Group = StepMachine::Group;
  const auto always = [](auto&& fn) {
    return [fn](auto&&... args) -> Result<void> {
      fn(args...);
      return {};
    };
  };
  switch (a.kind) {
    case Kind::kEnter: {
      SHOAL_TRY(const bool changed, model(a).enter(a.training));
      if (changed) machine_.follow(a.model, model(a).schedule());
      return {};
    }
    case Kind::kLease:
      return each_group(a.unit, [&](ShardedModel& m, std::size_t index, const Group& g) {
        if (!a.backward) return m.forward_begin(index, a.training);
        return m.backward_begin(index, a.versions[static_cast<std::size_t>(g.model)]);
      });
    case Kind::kCheckVersion:
      return each_group(a.unit, [&](ShardedModel& m, std::size_t index, const Group& g) {
        return m.leases().check_version(index, a.versions[static_cast<std::size_t>(g.model)]);
      });
    case Kind::kUnshard:
      if (a.group >= 0) {
        const Group& g = machine_.groups(a.unit)[static_cast<std::size_t>(a.group)];
        return model(a).unshard_ahead(static_cast<std::size_t>(g.index), a.backward);
      }
      return each_group(a.unit, [](ShardedModel& m, std::size_t index, const Group&) { return m.unshard(index); });
    case Kind::kForwardEnd:
      return each_group(a.unit,
                        always([&](ShardedModel& m, std::size_t index, const Group&) { m.forward_end(index, a.training, a.reshard); }));
    case Kind::kReshard:
      return each_group(a.unit, always([](ShardedModel& m, std::size_t index, const Group&) { m.reshard(index); }));
    case Kind::kAwaitReductions:
      return model(a).reductions().wait();
    case Kind::kGiveUp: {
      const Group& g = machine_.groups(a.unit)[static_cast<std::size_t>(a.group)];
      model(a).leases().give_up(static_cast<std::size_t>(g.index));
      return {};
    }
    case Kind::kFinishPass:
      return model(a).finish_backward(a.reshard);
    case Kind::kOpenWindow:
      return model(a).leases().open_window(a.text);
    case Kind::kReset:
      return each_model(always([](ShardedModel& m) { m.reset(); }));
    case Kind::kBeginOptimizer:
      return each_model(always([](ShardedModel& m) { m.optimizer_begin(); }));
    case Kind::kEndOptimizer:
      return each_model(always([](ShardedModel& m) { m.optimizer_end(); }));
    case Kind::kEndPass:
      return {};
    default:
      return fail(internal(std::string("an arena does not carry out the action ") + name_of(a.kind)));
  }
}

}  // namespace shoal::fsdp
