// Programs drawn at random, on 2 to 4 simulated ranks: trees of units, units used twice, checkpoints, frozen units, ranks that skip a unit,
// accumulation, exceptions and deaths at any event. The simulated ranks check the protocol's rules (simulated/ranks.h); here is what they
// run.
//
// SHOAL_SEEDS sets how many seeds run, SHOAL_SEED runs a single one and prints what its ranks do.
#include <algorithm>
#include <cstdlib>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fsdp/step/simulated/ranks.h"

namespace shoal::fsdp {
namespace {

using EventKind = SimulatedEvent::Kind;
using AfterForward = UnitRules::AfterForward;

class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : random_(seed) {
    const int num_units = draw(2, 7);
    for (int u = 0; u < num_units; ++u) {
      parents_.push_back(u == 0 ? -1 : draw(std::max(0, u - 2), u - 1));
      // Modules are in the order of a walk: a unit's subtree follows it directly.
      while (u > 0 && !is_ancestor_or_self(parents_.back(), u - 1)) parents_.back() = parents_[at(parents_.back())];
      auto rules = std::make_shared<UnitRules>();
      if (!plain_) {
        if (chance(0.2)) rules->after_forward = chance(0.5) ? AfterForward::kKeep : AfterForward::kSmallerMesh;
        if (chance(0.1)) rules->reshard_after_backward = false;
        if (chance(0.1)) rules->unshard_in_backward = false;
        if (u > 0 && chance(0.2)) rules->backward_prefetch = {u - 1};
      }
      units_.push_back({u == 0 ? "" : fmt::format("u{}", u), u == 0, rules});
      const bool collectives = devices_ || u == gathered_;
      groups_.push_back({{.index = u, .collectives = collectives, .gathers = collectives, .replicated = devices_ && chance(0.3)}});
      if (devices_ && !plain_ && chance(0.2)) rules->everywhere = false;
      frozen_.push_back(u > 0 && chance(0.1));
    }
    for (int u = 0; !plain_ && u + 1 < num_units; ++u) {
      if (chance(0.2)) std::const_pointer_cast<UnitRules>(units_[at(u)].rules)->forward_prefetch = {u + 1};
    }
    const int world = draw(2, 4), slots = draw(1, 3), inputs = draw(1, 2);
    inner_ = chance(0.5) ? 0 : draw(0, num_units - 1);
    ranks_ = std::make_unique<SimulatedRanks>(
        SimulatedRanks::Options{.world_size = world, .slots = slots, .inputs = inputs, .learns = learns_}, units_, groups_);
    for (int rank = 0; rank < world; ++rank) {
      ranks_->machine(rank).set_finalized_by_hand(by_hand_);
      ranks_->machine(rank).set_optimizer_in_backward(in_backward_);
    }
  }

  // Prints what the ranks do.
  void print() {
    ranks_->record([](int rank, const std::string& line) { fmt::print("{} {}\n", rank, line); });
  }
  // Ranks with different numbers of batches, whose last step may be incomplete. A rank without batches serves the others.
  std::string run_joined() {
    if (devices_ || gathered_ >= 0) return "";  // collectives need every rank's own call
    for (int rank = 0; rank < ranks_->world_size(); ++rank) {
      for (int batches = draw(0, 6); batches > 0; --batches) add_batch(rank, chance(0.6));
      ranks_->run(rank, {.kind = EventKind::kJoin});
    }
    return finish();
  }

  // Returns the fault, or "" if there was none.
  std::string run() {
    if (const auto fault = run_steps(draw(1, 4)); !fault.empty()) return fault;
    if (chance(0.3) && ranks_->world_size() > 1 && !in_backward_) {
      const int dies = draw(0, ranks_->world_size() - 1);
      add_step(dies);
      if (const auto fault = finish(); !fault.empty()) return fault;
      ranks_->next_generation();
      return run_steps(2);
    }
    return "";
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  bool is_ancestor_or_self(int unit, int of) const {
    for (; of >= 0; of = parents_[at(of)]) {
      if (of == unit) return true;
    }
    return false;
  }
  int depth() const {
    int most = 0;
    for (int u = 0; u < static_cast<int>(parents_.size()); ++u) {
      int depth = 0;
      for (int v = u; v >= 0; v = parents_[at(v)]) ++depth;
      most = std::max(most, depth);
    }
    return most;
  }

  std::string run_steps(int count) {
    for (int i = 0; i < count; ++i) add_step(-1);
    return finish();
  }

  std::string finish() {
    const bool ended = ranks_->run_all([this](int n) { return draw(0, n - 1); });
    if (!ranks_->fault().empty()) return ranks_->fault();
    if (!ended) return "every rank waits for another one";
    for (int r = 0; plain_ && r < ranks_->world_size(); ++r) {
      if (ranks_->most_leases(r) > at(depth()) + (learns_ ? 1 : 0))
        return fmt::format("rank {} has held {} leases at a time", r, ranks_->most_leases(r));
      if (ranks_->most_gathers(r) > (learns_ ? 2 : 1))
        return fmt::format("rank {} has had {} gathers under way", r, ranks_->most_gathers(r));
    }
    return "";
  }

  void add_batch(int rank, bool last) {
    const std::vector<bool> all(units_.size(), true);
    const std::vector<Use> uses(units_.size());
    std::vector<SimulatedEvent> events = {{.kind = EventKind::kSetReduces, .on = last}};
    forward(events, 0, all, uses);
    backward(events, 0, all, uses);
    events.push_back({.kind = EventKind::kPassEnds});
    if (by_hand_ && last) events.push_back({.kind = EventKind::kFinalize});
    if (last) events.push_back({.kind = EventKind::kOptimizer});
    for (const auto& e : events) ranks_->run(rank, e);
  }

  // How a pass uses a unit.
  struct Use {
    bool twice = false, returns = false;      // its forward runs twice; the pass leaves its backward in between
    bool recomputed = false, inside = false;  // a checkpoint; its forward runs again after the unit's backward has begun
  };

  // A step of all ranks, perhaps with an exception on each of them. In the step `dies` ends at a random event.
  void add_step(int dies) {
    const int passes = draw(1, 3);
    const bool ahead = chance(0.2);  // all forwards run before the first backward
    // Ranks may skip units where that leaves one order of reductions. It does not if a unit's reduction waits for the end of the pass
    // (frozen, or run by another forward), or if a unit is reduced twice. The reducer refuses such steps (InvalidArgument/Diverged).
    // Where collectives gather a unit, a rank that waits in such a gather publishes nothing for units that it has skipped.
    const bool skips =
        !ahead && !devices_ && gathered_ < 0 && chance(0.5) && std::find(frozen_.begin(), frozen_.end(), true) == frozen_.end();
    const bool raises = dies < 0 && !in_backward_ && !devices_ && gathered_ < 0 && chance(0.2);
    std::vector<bool> reduces;  // by pass: whether it reduces; the last pass always does
    for (int pass = 0; pass < passes; ++pass) reduces.push_back(!by_hand_ && chance(0.3));
    const bool evaluates = chance(0.2);
    const int by_hand = !plain_ && chance(0.1) ? draw(0, static_cast<int>(units_.size()) - 1) : -1;  // a unit that is unsharded by hand
    const bool reshards = chance(0.5), begins = chance(0.5), shows = !begins || chance(0.5);
    const bool writes = chance(0.3), waits = begins && chance(0.5);
    std::vector<std::vector<Use>> uses;  // by pass and unit, alike on all ranks
    for (int pass = 0; pass < passes; ++pass) {
      uses.emplace_back(units_.size());
      for (std::size_t u = 1; u < units_.size(); ++u)
        uses.back()[u] = {
            .twice = chance(0.1), .returns = !skips && !in_backward_ && chance(0.5), .recomputed = chance(0.15), .inside = chance(0.5)};
    }
    for (int rank = 0; rank < ranks_->world_size(); ++rank) {
      std::vector<SimulatedEvent> events;
      if (evaluates) evaluation(events);
      if (by_hand >= 0) {
        if (begins) events.push_back({.kind = EventKind::kBeginUnshard, .unit = by_hand});
        if (shows) events.push_back({.kind = EventKind::kUnshard, .unit = by_hand});
        if (shows) events.push_back({.kind = EventKind::kCompute, .unit = by_hand});
        if (reshards) events.push_back({.kind = EventKind::kReshard, .unit = by_hand});
        if (writes) events.push_back({.kind = EventKind::kWrite});
        if (waits) events.push_back({.kind = EventKind::kShowUnsharded, .unit = by_hand});
      }
      std::vector<std::vector<bool>> run;
      for (int pass = 0; pass < passes; ++pass) {
        auto& runs = run.emplace_back();
        for (int u = 0; u < static_cast<int>(units_.size()); ++u)
          runs.push_back(u == 0 || (runs[at(parents_[at(u)])] && !(skips && chance(0.2))));
      }
      for (int pass = 0; pass < passes && ahead; ++pass) forward(events, 0, run[at(pass)], uses[at(pass)]);
      for (int pass = 0; pass < passes; ++pass) {
        const bool last = pass + 1 == passes;
        events.push_back({.kind = EventKind::kSetReduces, .on = last || reduces[at(pass)]});
        events.push_back({.kind = EventKind::kSetLast, .on = last});
        if (!ahead) forward(events, 0, run[at(pass)], uses[at(pass)]);
        backward(events, 0, run[at(pass)], uses[at(pass)]);
        events.push_back({.kind = EventKind::kPassEnds});
      }
      if (by_hand_) events.push_back({.kind = EventKind::kFinalize});
      if (chance(0.3)) events.push_back({.kind = EventKind::kWrite});
      events.push_back({.kind = EventKind::kOptimizer});
      if (rank == dies || (raises && chance(0.7))) {
        const auto where = events.begin() + draw(0, static_cast<int>(events.size()) - 1);
        if (rank == dies) {
          events.insert(where, {.kind = EventKind::kDie});
        } else if (chance(0.5)) {
          events.insert(where, {.kind = EventKind::kRaise});
        } else {
          events.insert(where, {.kind = EventKind::kFailIn, .unit = draw(0, 20)});
        }
      }
      events.push_back({.kind = EventKind::kStepEnds});
      if (raises) events.push_back({.kind = EventKind::kFailIn, .unit = -1});
      if (raises) events.push_back({.kind = EventKind::kReset});
      for (const auto& e : events) ranks_->run(rank, e);
    }
  }

  void forward(std::vector<SimulatedEvent>& out, int unit, const std::vector<bool>& runs, const std::vector<Use>& uses) {
    for (int times = uses[at(unit)].twice ? 2 : 1; times > 0; --times) {
      out.push_back({.kind = EventKind::kForwardBegin, .unit = unit});
      out.push_back({.kind = EventKind::kCompute, .unit = unit});
      for (int child = unit + 1; child < static_cast<int>(units_.size()); ++child) {
        if (parents_[at(child)] == unit && runs[at(child)]) forward(out, child, runs, uses);
      }
      out.push_back({.kind = EventKind::kForwardEnd, .unit = unit});
    }
  }

  // A forward of the model, or of one unit, whose output needs no gradients.
  void evaluation(std::vector<SimulatedEvent>& out) {
    const int unit = inner_;
    out.push_back({.kind = EventKind::kForwardBegin, .unit = unit, .training = false});
    out.push_back({.kind = EventKind::kCompute, .unit = unit});
    out.push_back({.kind = EventKind::kForwardEnd, .unit = unit, .training = false});
  }

  void recompute(std::vector<SimulatedEvent>& out, int unit) {
    out.push_back({.kind = EventKind::kForwardBegin, .unit = unit, .recomputed = true});
    out.push_back({.kind = EventKind::kCompute, .unit = unit});
    out.push_back({.kind = EventKind::kForwardEnd, .unit = unit, .recomputed = true});
  }

  void backward(std::vector<SimulatedEvent>& out, int unit, const std::vector<bool>& runs, const std::vector<Use>& uses) {
    const bool trained = !frozen_[at(unit)];
    const Use& use = uses[at(unit)];
    if (trained && use.recomputed && !use.inside) recompute(out, unit);
    for (int times = use.twice ? 2 : 1; times > 0; --times) {
      if (trained) out.push_back({.kind = EventKind::kBackwardBegin, .unit = unit});
      if (trained && use.recomputed && use.inside) recompute(out, unit);
      for (int child = static_cast<int>(units_.size()) - 1; child > unit; --child) {
        if (parents_[at(child)] == unit && runs[at(child)] && times == 1) backward(out, child, runs, uses);
      }
      if (!trained) continue;
      if (units_[at(unit)].rules->unshard_in_backward) out.push_back({.kind = EventKind::kCompute, .unit = unit});
      out.push_back({.kind = EventKind::kGradient, .unit = unit});
      // Autograd reaches the inputs of the root only with the end of the pass.
      if (unit > 0 && (times == 1 || use.returns)) out.push_back({.kind = EventKind::kBackwardEnd, .unit = unit});
    }
  }

  std::mt19937_64 random_;
  const bool plain_ = chance(0.3);                             // without rules of its own, so that few leases are held at a time
  const bool learns_ = chance(0.5);                            // ranks unshard ahead as their last step would have needed it
  const bool by_hand_ = chance(0.1);                           // the program ends its passes by finalize
  const bool in_backward_ = chance(0.15);                      // the optimizer in backward
  const bool devices_ = chance(0.3);                           // collectives gather and reduce all units
  int gathered_ = !devices_ && chance(0.2) ? draw(0, 1) : -1;  // the only unit that collectives gather and reduce; -1: none
  int inner_ = 0;                                              // the unit of evaluations
  std::vector<int> parents_;
  std::vector<bool> frozen_;
  std::vector<StepMachine::UnitOptions> units_;
  std::vector<std::vector<StepMachine::Group>> groups_;
  std::unique_ptr<SimulatedRanks> ranks_;
};

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

void run_seeds(std::string (RandomProgram::*run)()) {
  const std::uint64_t one = number("SHOAL_SEED", 0);
  const std::uint64_t begin = one == 0 ? 1 : one, end = one == 0 ? number("SHOAL_SEEDS", 2000) : one;
  for (std::uint64_t seed = begin; seed <= end; ++seed) {
    RandomProgram program(seed);
    if (one != 0) program.print();
    ASSERT_EQ((program.*run)(), "") << "replay it: ./dev test //fsdp/step:step_tests --test_filter='RandomProgramTest.*' --test_output=all"
                                    << " --test_env=SHOAL_SEED=" << seed;
  }
}

TEST(RandomProgramTest, KeepsTheRulesOfAStep) { run_seeds(&RandomProgram::run); }

TEST(RandomProgramTest, RanksWithoutBatchesServeTheOthers) { run_seeds(&RandomProgram::run_joined); }

}  // namespace
}  // namespace shoal::fsdp
