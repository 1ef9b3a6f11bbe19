// The protocol of a training step on one rank: which actions follow an event of the program, in which order.
//
// Pure: it has no clock, thread, memory of parameters or knowledge of autograd. Doors (the hooks of fully_shard, a test's program) report
// events; an Executor (executor.h) carries out the actions. The machine changes its state when an action is done, so after an error it
// knows what has happened. Every rank's program reports the same events up to differences that the protocol allows (a unit that no
// forward of this rank ran), so all ranks issue collectives in one order.
//
// A unit's place in a step (Phase):
//
//      kIdle ── forward_begin with an input that needs gradients (watched) ──▶ kRan ── backward_begin ──▶ kBackward
//        ▲                                                                                                  │
//        └───────────── backward_end: its gradients go to a reduction, or are kept ─────────────────────────┘
//
// A group whose parameters collectives bring (on devices) has a Gather, too. It begins with the lease, and ends where the unit shows whole
// parameters. A gather that begins ahead of its use runs beside the computation of the unit before.
//
// Units are unsharded ahead of their use at two places: at a unit's begin by the program's lists (UnitRules), and where a Schedule, which
// was learned from an earlier step, says so (follow).
//
// A backward pass (Pass) begins with the first unit's backward_begin, and ends where autograd ends (pass_ends). With the write window
// closed, rows are read by other ranks. It opens at the end of the last pass that reduces, unless another forward's backward may follow, or
// before a write.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/schedule.h"
#include "fsdp/step/action.h"
#include "fsdp/step/transfers.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

// The program's requests for a unit. It may change them between two events.
struct UnitRules {
  // The lease between forward and backward. kDefault: kReshard, but kKeep for the root.
  enum class AfterForward : std::uint8_t { kDefault, kKeep, kReshard, kSmallerMesh };
  AfterForward after_forward = AfterForward::kDefault;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
  bool reduces = true;                                   // false: a backward keeps its gradients (no_sync)
  bool everywhere = true;                                // false: gradients are reduced within a replica only
  std::vector<int> forward_prefetch, backward_prefetch;  // units to unshard at the begin of this one's forward, or backward
};

class StepMachine {
 public:
  // Parameters of a unit on one mesh. They belong to the ShardedModel of that mesh.
  struct Group {
    int model = 0;
    int index = 0;             // the number of these parameters among the model's units
    bool empty = false;        // without parameters
    bool collectives = false;  // collectives reduce its gradients, not the engine
    bool gathers = false;      // collectives bring some of its parameters to this rank
    bool replicated = false;
  };
  struct UnitOptions {
    std::string name;  // "" for the root
    bool root = false;
    std::shared_ptr<const UnitRules> rules;
  };
  enum class Phase : std::uint8_t { kIdle, kRan, kBackward };
  enum class Gather : std::uint8_t {
    kNone,
    kBegun,   // and not awaited
    kByHand,  // begun by unshard(), so that a forward keeps it
    kShown,   // its result is in use
  };
  enum class Pass : std::uint8_t {
    kNone,
    kRunning,
    kWaiting,  // autograd has ended; the program will call finalize
    kEnding,
    kLeft,  // an exception has left the pass
  };

  // `units`: in the order of modules, the root first if it is among them.
  explicit StepMachine(std::vector<UnitOptions> units);

  // The models to which the units' groups belong, and how many reductions may be under way in each. Between two steps: reductions are
  // forgotten. `open`: by model, its write window is open; empty: all are, because no rank reads a new model.
  void set_groups(std::vector<std::vector<Group>> groups, int slots, std::vector<bool> open = {});
  void set_group(int unit, int group, Group value);
  // How many reductions by collectives may have their inputs at a time, the next one included.
  void set_inputs(int inputs) { inputs_ = static_cast<std::size_t>(inputs); }

  // ---- events of the program
  struct Forward {
    bool training = false;    // autograd records the forward
    bool recomputed = false;  // runs inside a backward pass (a checkpoint)
    bool alive = false;       // the output of an earlier forward of the root is alive, and its backward may follow
    bool failed = false;      // for forward_end: an exception has left the forward
  };
  Result<Actions> forward_begin(int unit, Forward forward);
  void watched(int unit);  // gradients will flow to the unit's parameters
  Result<Actions> forward_end(int unit, Forward forward);
  // The first call in a pass begins the pass.
  Result<Actions> begin_pass();
  // `versions`: by model, those that the forward of this backward read.
  Result<Actions> backward_begin(int unit, std::vector<std::uint64_t> versions);
  Result<Actions> backward_end(int unit);
  // Autograd has ended the pass. `alive`: as in Forward.
  Result<Actions> pass_ends(bool alive);
  // The program ends the pass by hand.
  Result<Actions> finalize(bool alive);
  // A pass in which no unit runs reduces the gradients that earlier passes kept.
  Result<Actions> reduce_kept(bool alive);
  // An exception has left the running pass.
  void raised();
  // `shows`: waits for the end of gathers, too. Otherwise the next forward, or show_unsharded, does so.
  Result<Actions> unshard(int unit, bool shows = true);
  // Ends an unshard that has shown nothing yet, and repeats it if a write has dropped its gather. Nothing if a forward has shown the unit
  // since, or it was resharded.
  Result<Actions> show_unsharded(int unit);
  Result<Actions> reshard(int unit);
  Result<Actions> show_sharded(int unit);
  // A write to rows follows, by `caller`.
  Result<Actions> open_window(const std::string& caller);
  Result<Actions> optimizer_begin();
  Result<Actions> optimizer_end();
  // The program starts the step over. `all`: drops the gradients of all units; false: only of the units that reduce.
  Actions reset(bool all, bool warns = false);
  // The actions before the next event, if an exception has left a pass; else none.
  Actions recover();
  // A rank without further batches: another rank needs this one's gradients of a group, or its write window.
  Result<Actions> serve_publication(int model, int unit, int group);
  Result<Actions> serve_window();
  Result<Actions> enter(Forward forward);
  // The model has moved to another mesh, between two steps. To be called after set_groups.
  Actions start_over();

  // ---- answers of the executor
  // False where the action would change nothing.
  bool is_due(const Action& action) const;
  // Returns the actions that follow this one at once: the gathers of a leased unit, and unshards of the schedule.
  Actions completed(const Action& action);
  // After kEnter: what this rank unshards ahead in the model as long as its step passes the boundaries of the schedule. Null: nothing.
  void follow(int model, std::shared_ptr<const Schedule> schedule) { following_[at(model)] = {std::move(schedule), 0}; }
  // One of these actions has failed, and the rest will not be carried out.
  void failed(const Actions& actions);

  // ---- requests of the program for all units
  void set_last_backward(bool last) { last_backward_ = last; }
  void set_finalized_by_hand(bool by_hand) { by_hand_ = by_hand; }
  void set_optimizer_in_backward(bool on) { optimizer_in_backward_ = on; }
  void set_joining(bool joining) { joining_ = joining; }

  bool finalized_by_hand() const { return by_hand_; }
  bool joining() const { return joining_; }
  // True if a window is open that no optimizer step has used yet.
  bool unstepped() const { return unstepped_; }
  bool window_open() const;
  Pass pass() const { return pass_; }
  bool in_pass() const { return pass_ == Pass::kRunning || pass_ == Pass::kWaiting || pass_ == Pass::kEnding; }
  int running() const { return running_; }
  Phase phase(int unit) const { return units_[at(unit)].phase; }
  View view(int unit) const { return units_[at(unit)].view; }
  UnitRules::AfterForward after_forward(int unit) const;
  // True if the optimizer updates units in the pass that reduces them.
  bool steps_in_backward() const { return optimizer_in_backward_ && any_reduces(); }
  // True if the gradients of all the unit's groups are reduced over all replicas, of which there may be one.
  bool everywhere(int unit) const;
  // True if a group of the unit that is reduced now is updated when its reduction ends, and not read again in this step.
  bool gives_up(int unit) const;
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Group>& groups(int unit) const { return units_[at(unit)].groups; }
  int num_units() const { return static_cast<int>(units_.size()); }

 private:
  // An unshard by hand that has shown nothing yet.
  enum class Awaited : std::uint8_t { kNone, kUnsharded, kDropped };

  struct Unit {
    UnitOptions options;
    std::vector<Group> groups = {};
    std::vector<bool> published = {};  // by group: in the running pass
    std::vector<Gather> gathers = {};  // by group
    Phase phase = Phase::kIdle;
    View view = View::kSharded;
    Awaited awaited = Awaited::kNone;
    bool seen = false;  // a forward has run the unit, and the backward of that forward is pending
    int casts = 0;      // casts_ at its last forward
  };

  struct Place {
    int unit = 0, group = 0;
  };

  struct Reduction {
    int unit, group;
    bool begun = false;  // false: the action that begins it is not done
    bool matches(int a, int b) const { return unit == a && group == b; }
  };

  struct Following {
    std::shared_ptr<const Schedule> schedule = {};  // null: none, or the step has left it
    std::size_t passed = 0;                         // boundaries that the step has passed
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  const UnitRules& rules(int unit) const { return *units_[at(unit)].options.rules; }
  bool any_reduces() const;
  // The units of a forward that the program called on `unit`: all for the root.
  int scope(int unit) const { return units_[at(unit)].options.root ? kAllUnits : unit; }
  Result<void> refuse_waiting(const std::string& event) const;

  void forget_casts(Actions& out);
  // Finds out which models gather all their groups, and whether any group uses collectives.
  void find_collectives();
  void order_rows(Actions& out) const;
  void unshard_ahead(Actions& out, const std::vector<int>& units, bool by_hand = false) const;
  void begin_gathers(Actions& out, int unit, bool ahead, bool by_hand = false) const;
  void drop_gathers(Actions& out, int unit, bool by_hand) const;
  // Drops the gathers of this version.
  void end_version(Actions& out);
  void enter(Actions& out, int unit) const;
  void enter_all(Actions& out, Forward forward);
  void open_windows(Actions& out, const std::string& caller) const;
  void show(Actions& out, int unit, View view) const;
  void show_all_sharded(Actions& out) const;
  void end_backward(Actions& out, int unit);
  void publish(Actions& out, int unit);
  void publish_skipped(Actions& out, int before);
  void reduce_or_keep(Actions& out, int unit, int group, bool reshard);
  void reduce(Actions& out, int unit, int group, bool reshard);
  void finish_reductions(Actions& out, int model, std::size_t kept);
  void finish_all_reductions(Actions& out);
  // Ends earlier reductions by collectives, so that the memory of their inputs is free before the unit's gradients are packed.
  void make_room(Actions& out, int unit);
  void add_transfers(Actions& out, const Transfers::Steps& steps) const;
  bool is_reducing(int unit, int group) const;
  void finish_models(Actions& out, bool leave) const;
  void pass_boundary(Actions& out, const Group& group, bool backward, bool begin);
  void pass_boundaries(Actions& out, int unit, bool backward, bool begin);
  Gather& gather(const Action& a) { return units_[at(a.unit)].gathers[at(a.group)]; }
  Gather gather(const Action& a) const { return units_[at(a.unit)].gathers[at(a.group)]; }
  Actions finish_pass(bool alive);

  std::vector<Unit> units_;
  std::vector<std::string> names_;
  std::vector<bool> open_;                       // by model: its write window is open
  std::vector<std::deque<Reduction>> reducing_;  // by model: publications that are not finished, oldest first
  std::vector<Following> following_;             // by model
  Transfers transfers_;                          // reductions by collectives that are not finished
  std::vector<bool> gathers_all_;                // by model: each of its groups gathers
  bool uses_collectives_ = false;
  std::vector<std::vector<Place>> places_;  // by model and Group::index
  std::size_t slots_ = 2, inputs_ = 1;
  int casts_ = 1;     // how often casts were dropped, plus 1
  int running_ = -1;  // the unit whose forward the program called, perhaps an inner one; -1: none
  Pass pass_ = Pass::kNone;
  std::vector<int> skipped_;  // in this pass: units that no forward of this rank ran, not published yet, in the order of modules
  bool last_backward_ = true, by_hand_ = false, optimizer_in_backward_ = false, joining_ = false, unstepped_ = false;
};

}  // namespace shoal::fsdp
