#include "fsdp/step/simulated/ranks.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace shoal::fsdp {

using Kind = Action::Kind;
using EventKind = SimulatedEvent::Kind;

namespace {

constexpr int kMostSteps = 1'000'000;

bool is_lease(Kind kind) { return kind == Kind::kLease || kind == Kind::kUnshard; }

// A schedule that unshards each unit one begin early: where the forward or backward before its own begins.
std::shared_ptr<const Schedule> learned(const std::vector<Boundary>& passed) {
  if (passed.empty()) return nullptr;
  auto out = std::make_shared<Schedule>();
  out->boundaries = passed;
  out->ahead.resize(passed.size());
  std::size_t before = 0;
  for (std::size_t i = 1; i < passed.size(); ++i) {
    if (!passed[i].begin) continue;
    out->ahead[before].push_back({passed[i].unit, passed[i].backward});
    before = i;
  }
  return out;
}

bool resets(const Actions& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const Action& a) { return a.kind == Kind::kReset; });
}

}  // namespace

SimulatedRanks::SimulatedRanks(Options options, const std::vector<StepMachine::UnitOptions>& units,
                               const std::vector<std::vector<StepMachine::Group>>& groups)
    : options_(options), groups_(groups) {
  for (int r = 0; r < options.world_size; ++r) {
    std::vector<std::shared_ptr<UnitRules>> rules;
    auto own = units;
    for (auto& u : own) {
      rules.push_back(std::make_shared<UnitRules>(*u.rules));
      u.rules = rules.back();
    }
    ranks_.emplace_back(std::move(own));
    ranks_.back().rules = std::move(rules);
    start(ranks_.back());
  }
}

void SimulatedRanks::start(Rank& rank) {
  rank.machine.set_groups(groups_, options_.slots);
  rank.machine.set_inputs(options_.inputs);
  rank.collectives.start_over();
  rank.entered = rank.left = rank.attempt = rank.stepped = 0;
  rank.leaving = false;
  rank.published.clear();
  rank.finished = 0;
}

std::string SimulatedRanks::name(int unit) const {
  const std::string& name = ranks_[0].machine.names()[at(unit)];
  return name.empty() ? "root" : name;
}

void SimulatedRanks::wrong(int rank, const std::string& what) {
  if (fault_.empty()) fault_ = fmt::format("rank {}: {}", rank, what);
}

void SimulatedRanks::write(int rank, const std::string& line) const {
  if (recorder_) recorder_(rank, line);
}

// ---- waits -------------------------------------------------------------------------------------------------------------------------

template <class Behind>
int SimulatedRanks::first(int rank, Behind&& behind) const {
  for (int r = 0; r < world_size(); ++r) {
    if (r != rank && behind(ranks_[at(r)])) return r;
  }
  return -1;
}

void SimulatedRanks::enter(Rank& rank) {
  rank.leaving = false;
  if (rank.entered != rank.left) return;
  ++rank.entered;
  rank.updated.clear();
}

bool SimulatedRanks::overtaken(int rank) const {
  const auto attempt = ranks_[at(rank)].attempt;
  return first(rank, [&](const Rank& r) { return r.attempt > attempt; }) >= 0;
}

int SimulatedRanks::missing(int rank, const Action& a) const {
  const Rank& mine = ranks_[at(rank)];
  const auto has_published = [&](std::size_t count) {
    return first(rank,
                 [&](const Rank& r) { return r.attempt < mine.attempt || (r.attempt == mine.attempt && r.published.size() < count); });
  };
  const auto leaves = [&] { return first(rank, [&](const Rank& r) { return r.left < mine.entered; }); };
  // A failed wait may have left this rank's window half open. As in Leases::enter, the rank first waits again until it opens.
  if (mine.leaving && (is_lease(a.kind) || a.kind == Kind::kEnter)) {
    if (const int r = leaves(); r >= 0) return r;
  }
  if (is_lease(a.kind)) {
    if (mine.leased.contains(a.unit)) return -1;
    return first(rank, [&](const Rank& r) { return r.entered < mine.entered; });
  }
  if (const std::size_t needed = mine.collectives.needed(a); needed != 0) {
    if (const int r = first(rank, [&](const Rank& r) { return r.collectives.issued().size() < needed; }); r >= 0) return r;
  }
  switch (a.kind) {
    case Kind::kBeginReduce:  // a slot is free once every rank has reduced what it held
      return mine.published.size() < at(options_.slots) ? -1 : has_published(mine.published.size() - at(options_.slots) + 1);
    case Kind::kAwaitReductions:
      return has_published(mine.published.size());
    case Kind::kFinishPass:
      if (const int r = has_published(mine.published.size()); r >= 0) return r;
      return a.reshard && mine.left == mine.entered ? leaves() : -1;
    case Kind::kOpenWindow:
      return mine.left == mine.entered ? leaves() : -1;
    default:
      return -1;
  }
}

std::string SimulatedRanks::refuses(int rank, const Action& a) const {
  const Rank& mine = ranks_[at(rank)];
  if (overtaken(rank) && (a.kind == Kind::kFinishPass || a.kind == Kind::kAwaitReductions)) return "another rank has started over";
  if (a.versions.empty() || (mine.entered != mine.left && a.versions[0] == mine.entered)) return "";
  return fmt::format("the forward read version {}, which may have been written since", a.versions[0]);
}

void SimulatedRanks::leave(int number) {
  Rank& rank = ranks_[at(number)];
  for (int u = 0; u < rank.machine.num_units(); ++u) {
    if (rank.machine.view(u) != View::kSharded)
      wrong(number, fmt::format("the modules of {} hold whole parameters while the window opens", name(u)));
  }
  rank.leased.clear();
  rank.left = rank.entered;
  rank.leaving = true;
}

// ---- one step of a rank ------------------------------------------------------------------------------------------------------------

bool SimulatedRanks::ended(int rank) const {
  const Rank& r = ranks_[at(rank)];
  if (r.dead) return true;
  if (r.action != r.actions.size() || r.next != r.program.size()) return false;
  return !r.joined || first(-1, [](const Rank& other) { return !other.dead && !other.joined; }) < 0;
}

bool SimulatedRanks::step(int rank) {
  Rank& mine = ranks_[at(rank)];
  if (ended(rank)) return false;
  if (mine.action == mine.actions.size()) {
    mine.action = 0;
    mine.actions.clear();
    if (mine.next == mine.program.size()) return serve(rank);
    const SimulatedEvent event = mine.program[mine.next];
    mine.actions = before(rank, event);
    if (!mine.actions.empty()) return true;
    ++mine.next;
    auto actions = report(rank, event);
    if (!actions) {
      refuse(rank, actions.error().message());
    } else {
      mine.actions = *std::move(actions);
    }
    return true;
  }
  const Action& a = mine.actions[mine.action];
  if (!mine.machine.is_due(a)) {
    ++mine.action;
    return true;
  }
  if (const std::string why = refuses(rank, a); !why.empty()) {
    refuse(rank, fmt::format("{}: {}", to_string(a, mine.machine.names()), why));
    return true;
  }
  const int waits_for = missing(rank, a);
  if (waits_for < 0 && mine.left < mine.entered && (a.kind == Kind::kOpenWindow || (a.kind == Kind::kFinishPass && a.reshard))) {
    leave(rank);
    return true;  // another rank may have waited for that
  }
  if (waits_for >= 0) {
    if (ended(waits_for)) {
      const char* what = ranks_[at(waits_for)].dead ? "died" : "has left";
      refuse(rank, fmt::format("{}: rank {} {}", to_string(a, mine.machine.names()), waits_for, what));
      return true;
    }
    if (mine.blocked_by < 0) write(rank, fmt::format("  wait for rank {}: {}", waits_for, to_string(a, mine.machine.names())));
    mine.blocked_by = waits_for;
    return false;
  }
  if (mine.blocked_by >= 0) mine.now = std::max(mine.now, ranks_[at(mine.blocked_by)].now);
  mine.blocked_by = -1;
  if (mine.fails_in >= 0 && mine.fails_in-- == 0 && !resets(mine.actions)) {
    excused_ = true;
    refuse(rank, to_string(a, mine.machine.names()) + ": an exception");
    return true;
  }
  const Actions next = apply(rank, a);
  ++mine.action;
  mine.actions.insert(mine.actions.begin() + static_cast<std::ptrdiff_t>(mine.action), next.begin(), next.end());
  return true;
}

void SimulatedRanks::refuse(int rank, const std::string& why) {
  write(rank, "! " + why);
  if (options_.refusals_are_faults && !excused_) wrong(rank, "refused: " + why);
  exception(rank);
}

// A rank that has joined takes part in the others' reductions and windows.
bool SimulatedRanks::serve(int rank) {
  Rank& mine = ranks_[at(rank)];
  if (std::exchange(mine.serves_window, false)) {
    mine.actions = *mine.machine.optimizer_begin();
    const auto enters = mine.machine.enter({.training = true});
    mine.actions.insert(mine.actions.end(), enters->begin(), enters->end());
    return true;
  }
  const std::size_t next = mine.published.size();
  const int ahead = first(rank, [&](const Rank& r) { return r.published.size() > next; });
  if (ahead >= 0) {
    const Place place = ranks_[at(ahead)].published[next];
    write(rank, "serve_publication " + name(place.first));
    mine.actions = *mine.machine.serve_publication(0, place.first, place.second);
    return true;
  }
  if (first(rank, [&](const Rank& r) { return r.left >= mine.entered; }) < 0) return false;
  write(rank, "serve_window");
  mine.actions = *mine.machine.serve_window();
  mine.serves_window = true;
  return true;
}

bool SimulatedRanks::run_all(const std::function<int(int)>& choose) {
  std::vector<int> going;
  for (int r = 0; r < world_size(); ++r) going.push_back(r);
  for (int steps = 0; !going.empty() && fault_.empty(); ++steps) {
    if (steps == kMostSteps) wrong(going[0], "the ranks go on without end");
    const auto chosen = at(choose(static_cast<int>(going.size())));
    // The chosen rank, or the next one that can go on: a rank that waits is asked again later.
    bool progress = false;
    for (std::size_t i = 0; i < going.size() && !progress; ++i) progress = step(going[(chosen + i) % going.size()]);
    std::erase_if(going, [this](int r) { return ended(r); });
    if (progress || going.empty()) continue;
    // As Peers::check_stuck: each of the ranks fails. Only an exception on some rank may lead there.
    if (!excused_) return false;
    for (const int r : going) refuse(r, "all ranks wait for each other");
    std::erase_if(going, [this](int r) { return ended(r); });
  }
  return going.empty();
}

// ---- actions -----------------------------------------------------------------------------------------------------------------------

void SimulatedRanks::publish(int rank, Place place) {
  Rank& mine = ranks_[at(rank)];
  const std::size_t number = mine.published.size();
  mine.published.push_back(place);
  mine.computed[place] = mine.kept[place] = 0;
  ++mine.published_in_pass[place];
  for (int r = 0; r < world_size(); ++r) {
    const Rank& other = ranks_[at(r)];
    if (other.attempt == mine.attempt && other.published.size() > number && other.published[number] != place)
      wrong(rank,
            fmt::format("publication {} is of {}, on rank {} of {}", number, name(place.first), r, name(other.published[number].first)));
  }
}

void SimulatedRanks::transfer(int rank, const Action& a) {
  Rank& mine = ranks_[at(rank)];
  SimulatedCollectives& c = mine.collectives;
  const auto& groups = groups_[a.unit == kAllUnits ? 0 : at(a.unit)];
  const SimulatedCollectives::Place place{a.unit, a.group};
  const auto check = [&](const std::string& broken) {
    if (!broken.empty()) wrong(rank, fmt::format("{}: {}", name(a.unit == kAllUnits ? 0 : a.unit), broken));
  };
  switch (a.kind) {
    case Kind::kBeginGather:
      if (mine.entered == mine.left) check("a gather begins before the rank has entered a version");
      check(c.begin_gather(place, mine.entered));
      break;
    case Kind::kDropGather:
      check(c.drop_gather(place));
      break;
    case Kind::kShow:
      for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
        if (!groups[at(g)].gathers) continue;
        if (a.view == View::kUnsharded) check(c.show({a.unit, g}, mine.entered));
        if (a.view == View::kSharded || a.view == View::kSmallerMesh) c.hide({a.unit, g});
      }
      break;
    case Kind::kBeginReduce:
      if (is_collective(place)) check(c.begin_reduce(place, groups[at(a.group)].replicated && !a.partial, at(options_.inputs)));
      break;
    case Kind::kReduceReplicas:
      check(c.reduce_replicas(place));
      break;
    case Kind::kFinishReduce:
      if (is_collective(place)) check(c.finish_reduce(place));
      break;
    case Kind::kReset:
      c.forget_reductions();
      break;
    case Kind::kEndPass:
      check(c.end_pass());
      break;
    default:
      return;
  }
  mine.most_gathers = std::max(mine.most_gathers, c.gathers_under_way());
  for (int r = 0; r < world_size() && !excused_; ++r) check(c.differs(ranks_[at(r)].collectives));
}

void SimulatedRanks::skip_collectives(Rank& rank) const {
  while (rank.finished < rank.published.size() && is_collective(rank.published[rank.finished])) ++rank.finished;
}

// The boundary of the program at which the action stands, if any.
void SimulatedRanks::pass(Rank& rank, const Action& a) const {
  const bool begins = a.kind == Kind::kLease && (a.backward || a.training), ends = a.kind == Kind::kForwardEnd && a.training;
  if (!begins && !ends && a.kind != Kind::kKeep && a.kind != Kind::kBeginReduce) return;
  const bool backward = begins ? a.backward : !ends;
  for (const auto& g : groups_[at(a.unit)]) rank.passed.push_back({backward, begins, g.index});
}

Actions SimulatedRanks::apply(int rank, const Action& a) {
  Rank& mine = ranks_[at(rank)];
  write(rank, "> " + to_string(a, mine.machine.names()));
  mine.now += options_.costs.other;
  const Place place{a.unit, a.group};
  transfer(rank, a);
  switch (a.kind) {
    case Kind::kEnter: {
      enter(mine);
      const bool begins = a.training && mine.stepped != mine.entered;
      if (options_.learns && (begins || mine.stepped != mine.entered)) mine.machine.follow(0, begins ? learned(mine.passed) : nullptr);
      if (!begins) break;
      mine.stepped = mine.entered;
      mine.passed.clear();
      break;
    }
    case Kind::kLease:
    case Kind::kUnshard:
      if (mine.leaving) enter(mine);
      if (mine.entered == mine.left) wrong(rank, fmt::format("a lease on {} before the rank has entered a version", name(a.unit)));
      if (mine.leased.insert(a.unit).second) mine.now += options_.costs.lease;
      mine.most_leases = std::max(mine.most_leases, mine.leased.size());
      break;
    case Kind::kForwardEnd:
      if (a.reshard) mine.leased.erase(a.unit);
      break;
    case Kind::kReshard:
      mine.leased.erase(a.unit);
      break;
    case Kind::kBeginReduce:
      mine.now += options_.costs.reduce;
      publish(rank, place);
      if (a.reshard) mine.leased.erase(a.unit);
      break;
    case Kind::kKeep:
      mine.kept[place] += std::exchange(mine.computed[place], 0);
      if (a.reshard) mine.leased.erase(a.unit);
      break;
    case Kind::kUpdate: {
      const auto reads = [&](const Rank& r) { return r.entered == mine.entered && r.leased.contains(a.unit); };
      if (const int other = first(rank, reads); other >= 0)
        wrong(rank, fmt::format("{} is updated while rank {} reads it", name(a.unit), other));
      mine.updated.insert(a.unit);
      break;
    }
    case Kind::kQueuePassEnd:
      mine.ends.clear();
      mine.published_in_pass.clear();
      break;
    case Kind::kFinishReduce:
      if (is_collective(place)) break;
      skip_collectives(mine);
      if (mine.finished >= mine.published.size() || mine.published[mine.finished] != place)
        wrong(rank, fmt::format("the reduction of {} is finished out of order", name(a.unit)));
      else if (first(rank, [&](const Rank& r) { return r.attempt == mine.attempt && r.published.size() <= mine.finished; }) >= 0)
        wrong(rank, fmt::format("the reduction of {} is finished before every rank has published", name(a.unit)));
      ++mine.finished;
      skip_collectives(mine);
      if (std::count_if(mine.published.begin() + static_cast<std::ptrdiff_t>(mine.finished), mine.published.end(),
                        [this](Place p) { return !is_collective(p); }) > options_.slots)
        wrong(rank, "more reductions are under way than there are slots");
      break;
    case Kind::kOpenWindow:
      if (mine.left < mine.entered) wrong(rank, "a window opens although the rank has not left its version");
      mine.leaving = false;
      break;
    case Kind::kFinishPass:
      if (a.reshard) mine.leaving = false;
      break;
    case Kind::kEndPass:
      skip_collectives(mine);
      if (mine.finished != mine.published.size()) wrong(rank, "a pass has ended with a reduction that is not finished");
      for (const auto& [of, count] : mine.computed) {
        if (count != 0) wrong(rank, fmt::format("a gradient of {} is neither reduced nor kept", name(of.first)));
      }
      for (const auto& [of, count] : mine.kept) {
        if (count != 0 && mine.rules[at(of.first)]->reduces)
          wrong(rank, fmt::format("a kept gradient of {} is not reduced", name(of.first)));
      }
      for (int u = 0; u < mine.machine.num_units(); ++u) {
        const int expected = mine.rules[at(u)]->reduces ? std::max(1, mine.ends[u]) : 0;
        if (mine.published_in_pass[{u, 0}] != expected)
          wrong(rank, fmt::format("a pass has reduced {} {} times, not {}", name(u), mine.published_in_pass[{u, 0}], expected));
      }
      break;
    case Kind::kReset:
      mine.leased.clear();
      ++mine.attempt;
      mine.published.clear();
      mine.finished = 0;
      break;
    case Kind::kDropGradients:
      for (auto* counts : {&mine.computed, &mine.kept}) {
        for (auto& [of, count] : *counts) count = of.first == a.unit ? 0 : count;
      }
      break;
    case Kind::kForgetPending:
      for (auto* counts : {&mine.computed, &mine.kept}) {
        for (const auto& [of, count] : *counts) {
          if (count != 0 && mine.rules[at(of.first)]->reduces) wrong(rank, fmt::format("a reset keeps a gradient of {}", name(of.first)));
        }
      }
      break;
    default:
      break;
  }
  pass(mine, a);
  Actions next = mine.machine.completed(a);
  if (mine.machine.window_open() != (mine.entered == mine.left && !mine.leaving))
    wrong(rank, "the machine's window is not that of the ranks");
  return next;
}

void SimulatedRanks::carry_out_now(int rank, const Result<Actions>& actions) {
  for (const Action& a : *actions) {
    if (!ranks_[at(rank)].machine.is_due(a)) continue;
    carry_out_now(rank, apply(rank, a));
  }
}

// ---- events ------------------------------------------------------------------------------------------------------------------------

void SimulatedRanks::read(int rank, int unit) {
  const Rank& mine = ranks_[at(rank)];
  if (!mine.leased.contains(unit)) wrong(rank, fmt::format("{} is read without a lease", name(unit)));
  if (mine.machine.view(unit) != View::kUnsharded && mine.rules[at(unit)]->unshard_in_backward)
    wrong(rank, fmt::format("{} is read while its modules hold a {} view", name(unit), to_string(mine.machine.view(unit))));
  for (int g = 0; const StepMachine::Group& group : groups_[at(unit)]) {
    if (group.gathers && mine.rules[at(unit)]->unshard_in_backward && !mine.collectives.is_shown({unit, g}, mine.entered))
      wrong(rank, fmt::format("{} is read without a gather of this version", name(unit)));
    ++g;
  }
  const int writer = first(rank, [&](const Rank& r) { return r.left >= mine.entered && r.machine.window_open(); });
  if (writer >= 0) wrong(rank, fmt::format("{} is read while rank {} may write", name(unit), writer));
  if (mine.updated.contains(unit)) wrong(rank, fmt::format("{} is read after its update", name(unit)));
}

// As torch does: the hooks of open forwards run, the innermost first, and autograd drops the pass.
void SimulatedRanks::exception(int rank) {
  Rank& mine = ranks_[at(rank)];
  mine.machine.failed(mine.actions);
  mine.machine.raised();
  mine.actions.clear();
  mine.action = 0;
  mine.blocked_by = -1;
  while (!mine.forwards.empty()) {
    const int unit = mine.forwards.back();
    mine.forwards.pop_back();
    carry_out_now(rank, mine.machine.forward_end(unit, {.training = true, .failed = true}));
  }
  mine.alive = 0;
  while (mine.next < mine.program.size() && mine.program[mine.next].kind != EventKind::kStepEnds) ++mine.next;
}

// As the door: the remains of a pass that an exception has left are cleared away, and a backward begins its pass.
Actions SimulatedRanks::before(int rank, const SimulatedEvent& e) {
  Rank& mine = ranks_[at(rank)];
  StepMachine& m = mine.machine;
  const bool outside = e.kind == EventKind::kForwardBegin ? !e.recomputed
                                                          : e.kind == EventKind::kBackwardBegin || e.kind == EventKind::kOptimizer ||
                                                                e.kind == EventKind::kWrite || e.kind == EventKind::kFinalize;
  if (outside && m.pass() == StepMachine::Pass::kLeft) {
    write(rank, "recover");
    return m.recover();
  }
  if (e.kind != EventKind::kBackwardBegin || m.in_pass()) return {};
  mine.alive = std::max(0, mine.alive - 1);  // the pass frees the graph of one forward
  const auto begins = m.begin_pass();
  if (!begins) return {};  // the machine refuses the event itself for the same reason
  write(rank, "begin_pass");
  return *begins;
}

void SimulatedRanks::write_event(int rank, const SimulatedEvent& e) const {
  static const std::map<EventKind, std::string> kNames = {
      {EventKind::kForwardBegin, "forward_begin"},
      {EventKind::kForwardEnd, "forward_end"},
      {EventKind::kBackwardBegin, "backward_begin"},
      {EventKind::kBackwardEnd, "backward_end"},
      {EventKind::kPassEnds, "pass_ends"},
      {EventKind::kFinalize, "finalize"},
      {EventKind::kRaise, "an exception is raised"},
      {EventKind::kOptimizer, "optimizer"},
      {EventKind::kWrite, "write"},
      {EventKind::kReset, "reset"},
      {EventKind::kDie, "the rank dies"},
      {EventKind::kUnshard, "unshard"},
      {EventKind::kBeginUnshard, "begin_unshard"},
      {EventKind::kShowUnsharded, "show_unsharded"},
      {EventKind::kReshard, "reshard"},
      {EventKind::kJoin, "join"},
  };
  const auto found = kNames.find(e.kind);
  if (found == kNames.end()) return;
  std::string line = found->second;
  if (e.unit != kAllUnits) line += " " + name(e.unit);
  if (e.recomputed) line += " recomputed";
  if (!e.training) line += " without gradients";
  write(rank, line);
}

Result<Actions> SimulatedRanks::report(int rank, const SimulatedEvent& e) {
  Rank& mine = ranks_[at(rank)];
  StepMachine& m = mine.machine;
  write_event(rank, e);
  const StepMachine::Forward forward{.training = e.training, .recomputed = e.recomputed, .alive = mine.alive > 0};
  switch (e.kind) {
    case EventKind::kForwardBegin: {
      mine.forwards.push_back(e.unit);
      auto out = m.forward_begin(e.unit, forward);
      if (e.training) m.watched(e.unit);
      return out;
    }
    case EventKind::kForwardEnd:
      mine.forwards.pop_back();
      if (e.training && !e.recomputed && mine.forwards.empty()) {
        ++mine.alive;
        mine.forward_version = mine.entered;
      }
      return m.forward_end(e.unit, forward);
    case EventKind::kCompute:
      mine.now += options_.costs.compute;
      read(rank, e.unit);
      return Actions();
    case EventKind::kGradient:
      for (int g = 0; g < static_cast<int>(groups_[at(e.unit)].size()); ++g) ++mine.computed[{e.unit, g}];
      return Actions();
    case EventKind::kBackwardBegin:
      return m.backward_begin(e.unit, {mine.forward_version});
    case EventKind::kBackwardEnd:
      ++mine.ends[e.unit];
      return m.backward_end(e.unit);
    case EventKind::kPassEnds:
      return m.pass_ends(mine.alive > 0);
    case EventKind::kFinalize:
      return m.finalize(mine.alive > 0);
    case EventKind::kRaise:
      excused_ = true;
      exception(rank);
      return Actions();
    case EventKind::kOptimizer:
      return m.optimizer_begin();
    case EventKind::kWrite:
      return m.open_window("a write");
    case EventKind::kUnshard:
      return m.unshard(e.unit);
    case EventKind::kBeginUnshard:
      return m.unshard(e.unit, /*shows=*/false);
    case EventKind::kShowUnsharded:
      return m.show_unsharded(e.unit);
    case EventKind::kReshard:
      return m.reshard(e.unit);
    case EventKind::kFailIn:
      mine.fails_in = e.unit;
      return Actions();
    case EventKind::kJoin:
      mine.joined = true;
      return m.window_open() ? m.enter({.training = true}) : Actions();
    case EventKind::kSetLast:
      m.set_last_backward(e.on);
      return Actions();
    case EventKind::kReset:
      return m.reset(/*all=*/true);
    case EventKind::kDie:
      excused_ = mine.dead = true;
      return Actions();
    case EventKind::kSetReduces:
      for (const auto& rules : mine.rules) rules->reduces = e.on;
      return Actions();
    case EventKind::kStepEnds:
      return Actions();
  }
  return Actions();
}

void SimulatedRanks::next_generation() {
  std::erase_if(ranks_, [](const Rank& r) { return r.dead; });
  for (int r = 0; r < world_size(); ++r) {
    Rank& rank = ranks_[at(r)];
    carry_out_now(r, rank.machine.reset(/*all=*/true));
    start(rank);
    carry_out_now(r, rank.machine.start_over());
  }
}

}  // namespace shoal::fsdp
