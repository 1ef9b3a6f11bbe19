// The executor for simulated ranks: several machines in one process, in lock step, with a virtual clock and a table of costs.
//
// A rank's program is a list of events that it is going to report. step() lets one rank carry out one action, or report its next event. An
// action that waits for other ranks on an arena (a lease, a slot, the end of a pass, a window) is blocked here under the same condition.
// So a seed fixes the order in which ranks advance, and a circle of waits is a state in which no rank can. The words by which ranks
// wait for each other are those of the arena: entered and left versions, publications in order, attempts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/step/executor.h"
#include "fsdp/step/simulated/collectives.h"

namespace shoal::fsdp {

// Microseconds of one action on a rank, and of a unit's computation.
struct StepCosts {
  double lease = 10, reduce = 20, compute = 100, other = 0;
};

// The next event of a program. Events of passes carry what autograd knows: whether a forward's output is alive.
struct SimulatedEvent {
  enum class Kind : std::uint8_t {
    kForwardBegin,
    kForwardEnd,
    kCompute,   // reads the unit, in its forward or backward
    kGradient,  // the unit's backward has computed this rank's gradient
    kBackwardBegin,
    kBackwardEnd,
    kPassEnds,
    kFinalize,
    kRaise,  // an exception leaves the pass; the rest of the step does not happen
    kOptimizer,
    kWrite,
    kReset,  // reset_iter_state on this rank
    kDie,
    kUnshard,        // by hand
    kBeginUnshard,   // by hand; a gather does not end before its use
    kShowUnsharded,  // waits for the end of that gather
    kReshard,        // by hand
    kFailIn,         // fails the action that comes `unit` actions later
    kJoin,           // the rank has no more batches, and serves the others
    kSetReduces,     // the units' next backwards reduce (`on`), or keep their gradients
    kSetLast,        // the next backward is the step's last (`on`)
    kStepEnds,       // where the program goes on after an exception
  };
  Kind kind;
  int unit = kAllUnits;
  bool training = true, recomputed = false, on = false;
};

class SimulatedRanks {
 public:
  struct Options {
    int world_size = 2;
    int slots = 2;
    int inputs = 1;       // reductions by collectives that may hold their inputs at a time
    bool learns = false;  // a rank unshards ahead as its last step would have needed it
    StepCosts costs = {};
    bool refusals_are_faults = true;  // unless an exception or a death precedes them on some rank
  };

  // `units` and `groups`: the same for every rank, but each rank has its own copy of the rules.
  SimulatedRanks(Options options, const std::vector<StepMachine::UnitOptions>& units,
                 const std::vector<std::vector<StepMachine::Group>>& groups);

  void run(int rank, SimulatedEvent event) { ranks_[at(rank)].program.push_back(event); }
  UnitRules& rules(int rank, int unit) { return *ranks_[at(rank)].rules[at(unit)]; }
  StepMachine& machine(int rank) { return ranks_[at(rank)].machine; }
  // Lets the rank carry out an action, or report an event. False if it is blocked, dead or has ended its program.
  bool step(int rank);
  bool ended(int rank) const;
  // Steps ranks in the order that `choose(n)` (a number below n) gives, until none can go on. True if all have ended their programs.
  bool run_all(const std::function<int(int)>& choose);
  // The survivors of a death continue as the ranks of a new mesh, at the boundary between two steps.
  void next_generation();
  int world_size() const { return static_cast<int>(ranks_.size()); }
  double now(int rank) const { return ranks_[at(rank)].now; }

  // The largest number of units that the rank has held leases on at a time.
  std::size_t most_leases(int rank) const { return ranks_[at(rank)].most_leases; }
  std::size_t most_gathers(int rank) const { return ranks_[at(rank)].most_gathers; }

  // The first rule that was broken: "unit 2 is read without a lease". Empty if none was.
  const std::string& fault() const { return fault_; }
  // Called with a line for each event and action, for transcripts.
  void record(std::function<void(int rank, const std::string& line)> recorder) { recorder_ = std::move(recorder); }

 private:
  using Place = std::pair<int, int>;  // unit and group
  struct Rank {
    explicit Rank(std::vector<StepMachine::UnitOptions> units) : machine(std::move(units)) {}
    StepMachine machine;
    std::vector<std::shared_ptr<UnitRules>> rules;
    std::vector<SimulatedEvent> program;
    std::size_t next = 0;  // in the program
    Actions actions;
    std::size_t action = 0;
    int blocked_by = -1;  // the rank for which the present action waited
    bool dead = false, joined = false, serves_window = false;
    bool leaving = false;  // has left its version, and its window is not open
    int fails_in = -1;
    int alive = 0;              // forwards whose outputs are kept, because their backwards have not run
    std::vector<int> forwards;  // units whose forwards run, the innermost last
    std::uint64_t entered = 0, left = 0, attempt = 0;
    std::uint64_t forward_version = 0;  // read by the last forward
    std::vector<Place> published;       // in this attempt
    std::size_t finished = 0;           // how many of `published` are reduced, or are left to collectives
    SimulatedCollectives collectives;
    std::set<int> leased;
    std::size_t most_leases = 0, most_gathers = 0;
    std::map<Place, int> computed, kept;  // gradients that wait for the end of their backward, or for a pass that reduces
    std::map<int, int> ends;              // by unit: how often this pass has left its backward
    std::map<Place, int> published_in_pass;
    std::set<int> updated;         // by the optimizer in backward, in this version
    std::uint64_t stepped = 0;     // the version in which the last step began
    std::vector<Boundary> passed;  // by this step
    double now = 0;
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  void start(Rank& rank);
  // The first rank other than `rank` for which `behind` is true, or -1.
  template <class Behind>
  int first(int rank, Behind&& behind) const;
  // The rank for which the action waits, or -1.
  int missing(int rank, const Action& action) const;
  bool overtaken(int rank) const;
  // Why the action fails on this rank alone; "" if it does not.
  std::string refuses(int rank, const Action& action) const;
  void leave(int rank);
  static void enter(Rank& rank);
  void pass(Rank& rank, const Action& action) const;
  // Returns the actions that follow at once.
  Actions apply(int rank, const Action& action);
  void carry_out_now(int rank, const Result<Actions>& actions);
  Result<Actions> report(int rank, const SimulatedEvent& event);
  void exception(int rank);
  void refuse(int rank, const std::string& why);
  bool serve(int rank);
  // Actions that the door carries out before the event; empty if there are none.
  Actions before(int rank, const SimulatedEvent& event);
  void read(int rank, int unit);
  void publish(int rank, Place place);
  // Carries out the action's part among collectives.
  void transfer(int rank, const Action& action);
  bool is_collective(Place place) const { return groups_[at(place.first)][at(place.second)].collectives; }
  // Goes past publications of groups that collectives reduce: the engine has nothing to finish for them.
  void skip_collectives(Rank& rank) const;
  void wrong(int rank, const std::string& what);
  void write(int rank, const std::string& line) const;
  void write_event(int rank, const SimulatedEvent& event) const;
  std::string name(int unit) const;

  const Options options_;
  const std::vector<std::vector<StepMachine::Group>> groups_;
  std::vector<Rank> ranks_;
  std::string fault_;
  bool excused_ = false;  // an exception or a death has happened
  std::function<void(int, const std::string&)> recorder_;
};

}  // namespace shoal::fsdp
