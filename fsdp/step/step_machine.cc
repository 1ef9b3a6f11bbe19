#include "fsdp/step/step_machine.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

using Kind = Action::Kind;
using AfterForward = UnitRules::AfterForward;

namespace {
constexpr std::size_t kUsual = 6;  // reserved for the actions of an event, enough for most units
}

StepMachine::StepMachine(std::vector<UnitOptions> units) {
  for (auto& options : units) {
    names_.push_back(options.name);
    units_.push_back({.options = std::move(options)});
  }
}

void StepMachine::set_groups(std::vector<std::vector<Group>> groups, int slots, std::vector<bool> open) {
  int models = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].groups = std::move(groups[u]);
    units_[u].published.assign(units_[u].groups.size(), false);
    units_[u].gathers.assign(units_[u].groups.size(), Gather::kNone);
    units_[u].awaited = Awaited::kNone;
    units_[u].seen = false;  // the versions that earlier forwards read are gone
    for (const Group& g : units_[u].groups) models = std::max(models, g.model + 1);
  }
  slots_ = static_cast<std::size_t>(slots);
  open_ = std::move(open);
  open_.resize(at(models), true);
  reducing_.assign(at(models), {});
  transfers_.clear();
  following_.assign(at(models), {});
  places_.assign(at(models), {});
  for (int u = 0; u < num_units(); ++u) {
    for (int g = 0; const Group& group : units_[at(u)].groups) {
      auto& places = places_[at(group.model)];
      if (places.size() <= at(group.index)) places.resize(at(group.index) + 1);
      places[at(group.index)] = {u, g++};
    }
  }
  find_collectives();
}

void StepMachine::set_group(int unit, int group, Group value) {
  units_[at(unit)].groups[at(group)] = value;
  find_collectives();
}

void StepMachine::find_collectives() {
  gathers_all_.assign(open_.size(), true);
  uses_collectives_ = false;
  for (const Unit& u : units_) {
    for (const Group& g : u.groups) {
      uses_collectives_ = uses_collectives_ || g.gathers || g.collectives;
      if (!g.gathers && !g.empty) gathers_all_[at(g.model)] = false;
    }
  }
}

// ---- queries ---------------------------------------------------------------------------------------------------------------

bool StepMachine::window_open() const { return std::find(open_.begin(), open_.end(), false) == open_.end(); }

AfterForward StepMachine::after_forward(int unit) const {
  const AfterForward wanted = rules(unit).after_forward;
  if (wanted != AfterForward::kDefault) return wanted;
  return units_[at(unit)].options.root ? AfterForward::kKeep : AfterForward::kReshard;
}

bool StepMachine::any_reduces() const {
  return std::any_of(units_.begin(), units_.end(), [](const Unit& u) { return u.options.rules->reduces; });
}

bool StepMachine::everywhere(int unit) const {
  const auto& groups = units_[at(unit)].groups;
  return rules(unit).everywhere || std::none_of(groups.begin(), groups.end(), [](const Group& g) { return g.replicated; });
}

bool StepMachine::gives_up(int unit) const { return optimizer_in_backward_ && last_backward_ && rules(unit).reduces && everywhere(unit); }

Result<void> StepMachine::refuse_waiting(const std::string& event) const {
  if (pass_ != Pass::kWaiting) return {};
  return fail(invalid_argument(fmt::format("{}, but the last backward pass is not finalized: its gradients are not complete", event))
                  .with_hint("call finalize_backward() first, or set_requires_gradient_sync(False) before all but the last backward"));
}

// ---- parts of events ---------------------------------------------------------------------------------------------------------------

void StepMachine::forget_casts(Actions& out) {
  // Casts of an earlier forward may have old values. Their autograd nodes are older than this forward's, so that gradients would arrive
  // after the end of their unit's backward.
  out.push_back({Kind::kForgetCasts});
}

void StepMachine::unshard_ahead(Actions& out, const std::vector<int>& units, bool by_hand) const {
  for (const int unit : units) {
    enter(out, unit);
    out.push_back({.kind = Kind::kUnshard, .unit = unit});
    begin_gathers(out, unit, /*ahead=*/true, by_hand);
  }
}

void StepMachine::order_rows(Actions& out) const {
  if (uses_collectives_) out.push_back({Kind::kOrderRows});
}

void StepMachine::begin_gathers(Actions& out, int unit, bool ahead, bool by_hand) const {
  for (int g = 0; const Group& group : units_[at(unit)].groups) {
    if (group.gathers)
      out.push_back({.kind = Kind::kBeginGather, .unit = unit, .group = g, .model = group.model, .again = by_hand, .ahead = ahead});
    ++g;
  }
}

void StepMachine::end_version(Actions& out) {
  drop_gathers(out, kAllUnits, /*by_hand=*/true);
  for (Unit& u : units_) {
    if (u.awaited == Awaited::kUnsharded) u.awaited = Awaited::kDropped;
  }
}

void StepMachine::drop_gathers(Actions& out, int unit, bool by_hand) const {
  for (int u = 0; u < num_units(); ++u) {
    if (unit != kAllUnits && u != unit) continue;
    for (int g = 0; const Group& group : units_[at(u)].groups) {
      if (group.gathers) out.push_back({.kind = Kind::kDropGather, .unit = u, .group = g, .model = group.model, .again = by_hand});
      ++g;
    }
  }
}

void StepMachine::enter(Actions& out, int unit) const {
  for (const Group& g : units_[at(unit)].groups) out.push_back({.kind = Kind::kEnter, .unit = unit, .model = g.model});
}

void StepMachine::open_windows(Actions& out, const std::string& caller) const {
  for (std::size_t model = 0; model < open_.size(); ++model)
    out.push_back({.kind = Kind::kOpenWindow, .model = static_cast<int>(model), .text = caller});
}

void StepMachine::enter_all(Actions& out, Forward f) {
  if (!f.alive) {
    for (Unit& u : units_) u.seen = false;
  }
  out.push_back({Kind::kFindAdded});
  for (std::size_t model = 0; model < open_.size(); ++model)
    out.push_back({.kind = Kind::kEnter, .model = static_cast<int>(model), .training = f.training});
}

void StepMachine::show(Actions& out, int unit, View view) const { out.push_back({.kind = Kind::kShow, .unit = unit, .view = view}); }

void StepMachine::show_all_sharded(Actions& out) const {
  for (int u = 0; u < num_units(); ++u) show(out, u, View::kSharded);
}

void StepMachine::finish_reductions(Actions& out, int model, std::size_t kept) {
  auto& reducing = reducing_[at(model)];
  while (reducing.size() > kept) {
    const int unit = reducing.front().unit, group = reducing.front().group;
    reducing.pop_front();
    out.push_back({.kind = Kind::kFinishReduce, .unit = unit, .group = group, .model = model});
    if (gives_up(unit)) out.push_back({.kind = Kind::kUpdate, .unit = unit, .group = group});
  }
}

void StepMachine::finish_all_reductions(Actions& out) {
  for (std::size_t model = 0; model < reducing_.size(); ++model) finish_reductions(out, static_cast<int>(model), 0);
}

void StepMachine::add_transfers(Actions& out, const Transfers::Steps& steps) const {
  for (const auto& step : steps) {
    const bool ends = step.kind == Transfers::Step::Kind::kFinish;
    out.push_back({.kind = ends ? Kind::kFinishReduce : Kind::kReduceReplicas, .unit = step.unit, .group = step.group});
    if (ends && gives_up(step.unit)) out.push_back({.kind = Kind::kUpdate, .unit = step.unit, .group = step.group});
  }
}

void StepMachine::make_room(Actions& out, int unit) {
  const auto& groups = units_[at(unit)].groups;
  const bool packs = std::any_of(groups.begin(), groups.end(), [](const Group& g) { return g.collectives && !g.empty; });
  if (!packs || !rules(unit).reduces) return;
  add_transfers(out, transfers_.advance(inputs_ - 1));
  transfers_.begin_batch();
}

bool StepMachine::is_reducing(int unit, int group) const {
  const auto& reducing = reducing_[at(units_[at(unit)].groups[at(group)].model)];
  return std::any_of(reducing.begin(), reducing.end(), [&](const Reduction& r) { return r.matches(unit, group); });
}

void StepMachine::reduce(Actions& out, int unit, int group, bool reshard) {
  Unit& u = units_[at(unit)];
  const Group& g = u.groups[at(group)];
  const bool last_read = gives_up(unit);
  u.published[at(group)] = true;
  const bool partial = g.replicated && !rules(unit).everywhere;
  out.push_back(
      {.kind = Kind::kBeginReduce, .unit = unit, .group = group, .model = g.model, .reshard = reshard || last_read, .partial = partial});
  if (g.collectives && !g.empty) transfers_.add(unit, group, g.replicated && !partial);
  if (!g.collectives && !g.empty) {
    reducing_[at(g.model)].push_back({unit, group});
    // The new publication has the slot of the one that was `slots_` before it, so every rank has reduced that earlier one. The moment
    // depends only on the order of publications, which is equal on all ranks: the program's hooks that communicate then match across ranks.
    finish_reductions(out, g.model, slots_);
  }
  if (last_read) {
    out.push_back({.kind = Kind::kGiveUp, .unit = unit, .group = group, .model = g.model});
  }
  // A wait in one model serves no reductions of another, so at most one model has pending ones.
  if (open_.size() > 1) out.push_back({.kind = Kind::kAwaitReductions, .model = g.model});
}

void StepMachine::reduce_or_keep(Actions& out, int unit, int group, bool reshard) {
  if (rules(unit).reduces) return reduce(out, unit, group, reshard);
  const int model = units_[at(unit)].groups[at(group)].model;
  out.push_back({.kind = Kind::kKeep, .unit = unit, .group = group, .model = model, .reshard = reshard});
}

// Reduces a unit that did not run in this pass, with its kept gradients.
void StepMachine::publish(Actions& out, int unit) {
  const auto& published = units_[at(unit)].published;
  if (std::find(published.begin(), published.end(), false) != published.end()) make_room(out, unit);
  for (int g = 0; g < static_cast<int>(units_[at(unit)].groups.size()); ++g) {
    if (rules(unit).reduces && !units_[at(unit)].published[at(g)]) reduce(out, unit, g, false);
  }
}

// Publishes skipped units that precede `before` in backward order: other ranks may have run them, and all ranks publish in one order.
void StepMachine::publish_skipped(Actions& out, int before) {
  while (!skipped_.empty() && skipped_.back() > before) {
    const int unit = skipped_.back();
    skipped_.pop_back();
    if (units_[at(unit)].phase == Phase::kIdle) publish(out, unit);
  }
}

void StepMachine::end_backward(Actions& out, int unit) {
  publish_skipped(out, unit);
  Unit& u = units_[at(unit)];
  u.phase = Phase::kIdle;
  const bool reshard = rules(unit).reshard_after_backward, hides = reshard || gives_up(unit);
  // As in FSDP2, the memory of whole parameters is free before their gradients are packed for a collective.
  const bool hides_first = std::any_of(u.groups.begin(), u.groups.end(), [](const Group& g) { return g.collectives; });
  if (hides && hides_first) show(out, unit, View::kSharded);
  make_room(out, unit);
  for (int g = 0; g < static_cast<int>(u.groups.size()); ++g) {
    if (rules(unit).reduces && is_reducing(unit, g)) {
      // An earlier autograd graph of this pass has published the group: its reduction must end before the next one begins. The wait
      // cannot deadlock, since all ranks publish in one order.
      out.push_back({.kind = Kind::kAwaitReductions, .model = u.groups[at(g)].model});
      finish_all_reductions(out);
    }
    reduce_or_keep(out, unit, g, reshard);
  }
  if (hides && !hides_first) show(out, unit, View::kSharded);
}

// ---- forward ---------------------------------------------------------------------------------------------------------------------

Result<Actions> StepMachine::forward_begin(int unit, Forward f) {
  Actions out;
  out.reserve(kUsual);
  Unit& u = units_[at(unit)];
  const bool may_be_kept = u.casts == casts_;  // since this unit's last forward, no casts were dropped
  if (may_be_kept) forget_casts(out);
  u.casts = casts_ + (may_be_kept ? 1 : 0);
  const bool outermost = !f.recomputed && (u.options.root || running_ < 0);
  if (outermost) {
    out.push_back({.kind = Kind::kCheckRows, .unit = unit});
    // Gathers that were begun ahead may have old values: the program may have written to rows since, where no window guards them.
    drop_gathers(out, kAllUnits, /*by_hand=*/false);
  }
  if (window_open()) out.push_back({Kind::kAdopt});
  if (u.options.root) {
    enter_all(out, f);
  } else {
    enter(out, unit);
  }
  if (outermost) order_rows(out);  // adopted values are in the rows by now
  out.push_back({.kind = Kind::kLease, .unit = unit, .training = f.training && !f.recomputed});
  show(out, unit, View::kUnsharded);
  if (outermost || (running_ == unit && !f.recomputed)) out.push_back({.kind = Kind::kWatchWhole, .unit = scope(unit)});
  if (!f.recomputed) unshard_ahead(out, rules(unit).forward_prefetch);
  return out;
}

void StepMachine::watched(int unit) {
  Unit& u = units_[at(unit)];
  if (u.phase == Phase::kIdle) u.phase = Phase::kRan;
}

Result<Actions> StepMachine::forward_end(int unit, Forward f) {
  Actions out;
  out.reserve(kUsual);
  Unit& u = units_[at(unit)];
  const bool outermost = running_ == unit && !f.recomputed;
  const int ran = scope(unit);
  if (outermost) {
    running_ = -1;
    out.push_back({.kind = Kind::kCompareWhole, .unit = ran});
    if (!window_open()) {  // the window is still open if the forward failed at its begin
      out.push_back({.kind = Kind::kCloseRows, .unit = ran, .text = "a forward has run, and no synchronised backward after it"});
    }
  }
  const bool in_backward = u.phase == Phase::kBackward;
  const AfterForward after = after_forward(unit);
  const bool reshard = after == AfterForward::kReshard && !in_backward;
  out.push_back({.kind = Kind::kForwardEnd, .unit = unit, .training = f.training && !f.recomputed, .reshard = reshard});
  if (reshard) show(out, unit, View::kSharded);
  if (after == AfterForward::kSmallerMesh && !in_backward) show(out, unit, View::kSmallerMesh);
  if (outermost && !f.training) {
    for (int each = 0; each < num_units(); ++each) {
      if (ran == kAllUnits || each == unit) show(out, each, View::kGuarded);
    }
  }
  if (outermost && uses_collectives_) out.push_back({Kind::kEndForward});
  if (outermost && !f.failed) out.push_back({Kind::kRaiseFound});
  return out;
}

// ---- backward --------------------------------------------------------------------------------------------------------------------

Result<Actions> StepMachine::begin_pass() {
  SHOAL_OK(refuse_waiting("another backward pass began"));
  if (in_pass()) return Actions();
  if (joining_ && unstepped_ && any_reduces()) {
    return fail(invalid_argument("inside join, a second synchronised backward ran without an optimizer's step after the first")
                    .with_hint("accumulate with set_requires_gradient_sync(False) on all but the last backward of a step"));
  }
  return Actions{{Kind::kQueuePassEnd}};
}

Result<Actions> StepMachine::backward_begin(int unit, std::vector<std::uint64_t> versions) {
  Actions out;
  out.reserve(kUsual);
  Unit& u = units_[at(unit)];
  if (u.phase == Phase::kBackward) {  // the running backward may be that of another forward, which read another version
    out.push_back({.kind = Kind::kCheckVersion, .unit = unit, .versions = std::move(versions)});
    return out;
  }
  u.phase = Phase::kBackward;
  out.push_back({.kind = Kind::kLease, .unit = unit, .backward = true, .versions = std::move(versions)});
  if (rules(unit).unshard_in_backward) show(out, unit, View::kUnsharded);
  unshard_ahead(out, rules(unit).backward_prefetch);
  return out;
}

Result<Actions> StepMachine::backward_end(int unit) {
  Actions out;
  out.reserve(kUsual);
  end_backward(out, unit);
  return out;
}

Result<Actions> StepMachine::pass_ends(bool alive) {
  if (by_hand_ && any_reduces()) {
    pass_ = Pass::kWaiting;
    return Actions();
  }
  return finish_pass(alive);
}

Result<Actions> StepMachine::finalize(bool alive) {
  if (pass_ == Pass::kWaiting) return finish_pass(alive);
  if (!window_open() && any_reduces()) return reduce_kept(alive);
  return Actions();
}

Result<Actions> StepMachine::reduce_kept(bool alive) {
  for (Unit& u : units_) u.published.assign(u.groups.size(), false);
  return finish_pass(alive);
}

void StepMachine::finish_models(Actions& out, bool leave) const {
  for (std::size_t model = 0; model < open_.size(); ++model)
    out.push_back({.kind = Kind::kFinishPass, .model = static_cast<int>(model), .reshard = leave});
}

Actions StepMachine::finish_pass(bool alive) {
  Actions out;
  pass_ = Pass::kEnding;
  const bool reduced = any_reduces();
  for (int unit = num_units() - 1; unit >= 0; --unit) {
    if (units_[at(unit)].phase == Phase::kIdle) {
      publish(out, unit);
    } else {
      end_backward(out, unit);
    }
  }
  // The window stays closed while the backward of another forward may follow, because that backward reads this version.
  const bool last = reduced && (last_backward_ || by_hand_);
  const bool leave = last && !alive;
  const std::string why =
      last ? "the output of another forward is kept, whose backward may follow" : "a backward has run that is not the last";
  const auto record_window = [&] {
    if (leave) {
      out.push_back({Kind::kFreeRows});
    } else {
      out.push_back({.kind = Kind::kCloseRows, .again = true, .text = why});
      out.push_back({Kind::kRaiseFound});
    }
  };
  add_transfers(out, transfers_.finish());
  if (uses_collectives_) out.push_back({Kind::kFinishTransfers});
  if (leave) {  // leases end before the window opens
    end_version(out);
    show_all_sharded(out);
  }
  finish_models(out, leave);
  record_window();
  out.push_back({.kind = Kind::kSamplesUsed, .again = !reduced});
  finish_all_reductions(out);
  if (optimizer_in_backward_) record_window();  // the optimizer's own writes are no faults of the program
  out.push_back({Kind::kEndPass});
  if (reduced) out.push_back({Kind::kReduceAdded});
  out.push_back({Kind::kRefuseLate});
  out.push_back({Kind::kRunHooks});
  return out;
}

// ---- between steps ---------------------------------------------------------------------------------------------------------------

Result<Actions> StepMachine::unshard(int unit, bool shows) {
  Actions out;
  if (window_open()) out.push_back({Kind::kAdopt});
  order_rows(out);
  unshard_ahead(out, {unit}, /*by_hand=*/true);
  if (shows) {
    show(out, unit, View::kUnsharded);
  } else if (view(unit) != View::kUnsharded) {
    units_[at(unit)].awaited = Awaited::kUnsharded;
  }
  return out;
}

Result<Actions> StepMachine::show_unsharded(int unit) {
  const Awaited awaited = units_[at(unit)].awaited;
  if (awaited == Awaited::kDropped) return unshard(unit);
  Actions out;
  if (awaited == Awaited::kUnsharded) show(out, unit, View::kUnsharded);
  return out;
}

Result<Actions> StepMachine::reshard(int unit) {
  Actions out;
  show(out, unit, View::kSharded);
  units_[at(unit)].awaited = Awaited::kNone;
  drop_gathers(out, unit, /*by_hand=*/true);
  out.push_back({.kind = Kind::kReshard, .unit = unit});
  return out;
}

Result<Actions> StepMachine::open_window(const std::string& caller) {
  SHOAL_OK(refuse_waiting(fmt::format("{} opens the write window", caller)));
  Actions out;
  running_ = -1;
  end_version(out);
  show_all_sharded(out);
  out.push_back({Kind::kFreeRows});
  open_windows(out, caller);
  forget_casts(out);
  return out;
}

Result<Actions> StepMachine::optimizer_begin() {
  unstepped_ = false;
  SHOAL_TRY(Actions out, open_window("optimizer.step"));
  out.push_back({Kind::kBeginOptimizer});
  return out;
}

Result<Actions> StepMachine::optimizer_end() { return Actions{{Kind::kEndOptimizer}}; }

Result<Actions> StepMachine::show_sharded(int unit) {
  Actions out;
  show(out, unit, View::kSharded);
  return out;
}

Result<Actions> StepMachine::enter(Forward f) {
  Actions out;
  enter_all(out, f);
  return out;
}

Result<Actions> StepMachine::serve_publication(int model, int unit, int group) {
  Actions out;
  if (is_reducing(unit, group)) {
    out.push_back({.kind = Kind::kAwaitReductions, .model = model});
    finish_all_reductions(out);
  }
  make_room(out, unit);
  reduce(out, unit, group, true);  // the other ranks reduce, although this rank's last backward may have kept its gradients
  return out;
}

Result<Actions> StepMachine::serve_window() {
  Actions out;
  add_transfers(out, transfers_.finish());
  if (uses_collectives_) out.push_back({Kind::kFinishTransfers});
  show_all_sharded(out);
  finish_models(out, /*leave=*/true);
  finish_all_reductions(out);
  return out;
}

// ---- after exceptions -------------------------------------------------------------------------------------------------------------

void StepMachine::raised() {
  if (pass_ == Pass::kRunning || pass_ == Pass::kEnding) pass_ = Pass::kLeft;
}

void StepMachine::failed(const Actions& actions) {
  for (auto& reducing : reducing_) std::erase_if(reducing, [](const Reduction& r) { return !r.begun; });
  transfers_.drop_added();
  const auto ends = [](const Action& a) { return a.kind == Kind::kEndPass; };
  if (pass_ == Pass::kEnding && std::any_of(actions.begin(), actions.end(), ends)) pass_ = Pass::kLeft;
}

Actions StepMachine::recover() { return pass_ == Pass::kLeft ? reset(false, true) : Actions(); }

Actions StepMachine::reset(bool all, bool warns) {
  Actions out;
  running_ = -1;
  for (auto& reducing : reducing_) reducing.clear();
  transfers_.clear();
  for (Unit& u : units_) u.phase = Phase::kIdle;
  out.push_back({.kind = Kind::kDropReductions, .again = warns});
  end_version(out);
  out.push_back({Kind::kReset});
  show_all_sharded(out);
  if (optimizer_in_backward_) {  // rows may be partly updated, so this version ends
    open_windows(out, "reset_iter_state");
    out.push_back({Kind::kFreeRows});
  }
  for (int u = 0; u < num_units(); ++u) {
    if (all || rules(u).reduces) out.push_back({.kind = Kind::kDropGradients, .unit = u});
  }
  out.push_back({Kind::kForgetPending});
  return out;
}

Actions StepMachine::start_over() {
  pass_ = Pass::kNone;
  running_ = -1;
  Actions out{{Kind::kFreeRows}};
  forget_casts(out);
  return out;
}

// ---- the schedule -----------------------------------------------------------------------------------------------------------------

void StepMachine::pass_boundary(Actions& out, const Group& group, bool backward, bool begin) {
  Following& f = following_[at(group.model)];
  if (f.schedule == nullptr) return;
  const std::size_t number = f.passed++;
  if (number >= f.schedule->boundaries.size() || !(f.schedule->boundaries[number] == Boundary{backward, begin, group.index})) {
    f.schedule.reset();
    return;
  }
  for (const Schedule::Unshard& ahead : f.schedule->ahead[number]) {
    const Place place = places_[at(group.model)][at(ahead.unit)];
    if (gives_up(place.unit) && units_[at(place.unit)].published[at(place.group)]) continue;  // the group is not read again in this version
    out.push_back({.kind = Kind::kUnshard, .unit = place.unit, .group = place.group, .model = group.model, .backward = ahead.backward});
    // Ranks that skip units in an arena pass different boundaries, but gathers have to begin in one order on all ranks. So they begin here
    // only in a model whose groups all gather.
    if (gathers_all_[at(group.model)] && !(ahead.backward && !rules(place.unit).unshard_in_backward))
      out.push_back({.kind = Kind::kBeginGather, .unit = place.unit, .group = place.group, .model = group.model, .ahead = true});
  }
}

void StepMachine::pass_boundaries(Actions& out, int unit, bool backward, bool begin) {
  for (const Group& g : units_[at(unit)].groups) pass_boundary(out, g, backward, begin);
}

// ---- answers of the executor ------------------------------------------------------------------------------------------------------

bool StepMachine::is_due(const Action& a) const {
  switch (a.kind) {
    case Kind::kShow:
      // The program may have replaced the tensors of other views, so these are shown again.
      if (a.view == View::kSharded) return view(a.unit) != View::kSharded;
      return a.view != View::kGuarded || view(a.unit) == View::kUnsharded;
    case Kind::kEnter:
      return a.unit == kAllUnits || open_[at(a.model)];
    case Kind::kBeginGather:
      return gather(a) == Gather::kNone && units_[at(a.unit)].groups[at(a.group)].gathers;
    case Kind::kDropGather:
      return gather(a) == Gather::kBegun || (a.again && gather(a) == Gather::kByHand);
    default:
      return true;
  }
}

Actions StepMachine::completed(const Action& a) {
  switch (a.kind) {
    case Kind::kCheckRows:
      running_ = a.unit;
      break;
    case Kind::kShow:
      units_[at(a.unit)].view = a.view;
      if (a.view == View::kUnsharded) units_[at(a.unit)].awaited = Awaited::kNone;
      for (Gather& gather : units_[at(a.unit)].gathers) {
        if (a.view == View::kUnsharded) gather = Gather::kShown;
        if ((a.view == View::kSharded || a.view == View::kSmallerMesh) && gather == Gather::kShown) gather = Gather::kNone;
      }
      break;
    case Kind::kBeginGather:
      gather(a) = a.again ? Gather::kByHand : Gather::kBegun;
      break;
    case Kind::kDropGather:
      gather(a) = Gather::kNone;
      break;
    case Kind::kEnter:
      open_[at(a.model)] = false;
      break;
    case Kind::kLease: {
      if (!a.backward) units_[at(a.unit)].seen = true;
      Actions out;
      if (!a.backward || rules(a.unit).unshard_in_backward) begin_gathers(out, a.unit, /*ahead=*/false);  // before those of units ahead
      if (a.backward || a.training) pass_boundaries(out, a.unit, a.backward, /*begin=*/true);
      return out;
    }
    case Kind::kForwardEnd:
      if (a.training) {
        Actions out;
        pass_boundaries(out, a.unit, /*backward=*/false, /*begin=*/false);
        return out;
      }
      break;
    case Kind::kKeep: {
      Actions out;
      pass_boundary(out, units_[at(a.unit)].groups[at(a.group)], /*backward=*/true, /*begin=*/false);
      return out;
    }
    case Kind::kQueuePassEnd:
      pass_ = Pass::kRunning;
      skipped_.clear();
      for (int u = 0; u < num_units(); ++u) {
        Unit& unit = units_[at(u)];
        unit.published.assign(unit.groups.size(), false);
        if (!unit.seen && unit.phase != Phase::kBackward) skipped_.push_back(u);
      }
      break;
    case Kind::kFinishPass:
      if (a.reshard) open_[at(a.model)] = true;
      unstepped_ = a.reshard && !optimizer_in_backward_;
      break;
    case Kind::kOpenWindow:
      open_[at(a.model)] = true;
      break;
    case Kind::kEndPass:
      pass_ = Pass::kNone;
      running_ = -1;
      break;
    case Kind::kForgetCasts:
      ++casts_;
      break;
    case Kind::kBeginReduce: {
      Actions out;
      const Group& g = units_[at(a.unit)].groups[at(a.group)];
      pass_boundary(out, g, /*backward=*/true, /*begin=*/false);
      if (g.empty) return out;
      if (g.collectives) {
        transfers_.begun(a.unit, a.group);
        return out;
      }
      auto& reducing = reducing_[at(a.model)];
      const auto found =
          std::find_if(reducing.begin(), reducing.end(), [&](const Reduction& r) { return !r.begun && r.matches(a.unit, a.group); });
      if (found != reducing.end()) found->begun = true;
      return out;
    }
    case Kind::kForgetPending:  // the last action of a reset: after a failure before it, pass_ shows that the reset has to be repeated
      pass_ = Pass::kNone;
      break;
    default:
      break;
  }
  return {};
}

}  // namespace shoal::fsdp
