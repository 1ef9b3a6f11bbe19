// The actions of a training step: what an executor does, in order, on behalf of the step machine (step_machine.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::fsdp {

inline constexpr int kAllUnits = -1;

// The tensors that a unit's modules hold.
enum class View : std::uint8_t {
  kSharded,      // this rank's slices
  kUnsharded,    // whole parameters
  kSmallerMesh,  // slices of a smaller mesh, between forward and backward (reshard_after_forward=n)
  kGuarded,      // whole parameters after an evaluation; a write to them is intercepted
};

struct Action {
  enum class Kind : std::uint8_t {
    // ---- on tensors, by the program's side
    kForgetCasts,      // drop casts that autocast has kept: they may have old values
    kCheckRows,        // fail if rows of these units were written while the window was closed
    kAdopt,            // take over tensors that the program has put in place of parameters
    kFindAdded,        // find parameters that were added to the model; drop an evaluation's private copies of whole parameters
    kShow,             // the unit's modules hold `view` from now on
    kWatchWhole,       // remember values of whole parameters, for kCompareWhole
    kCompareWhole,     // find whole parameters that the program has written
    kCloseRows,        // remember the rows' versions unless that is done (`again`: anew), and why (`text`) they may not be written
    kFreeRows,         // the window is open: rows may be written
    kRaiseFound,       // fail with what kCompareWhole or kCloseRows has found
    kQueuePassEnd,     // report the end of the running backward pass, once autograd has ended it
    kBeginReduce,      // begin the reduction of a group's gradients, over all replicas or (`partial`) within one; `reshard`: drop its lease
    kFinishReduce,     // take the oldest reduction of a group, and accumulate it; one in an arena has ended by now
    kKeep,             // add the gradients of a backward to those kept for a later reduction
    kUpdate,           // the optimizer in backward updates a group
    kSamplesUsed,      // the pass has used the samples of this rank's batch; `again`: it has kept their gradients
    kOrderRows,        // gathers from now on see rows as the program's present stream has left them
    kBeginGather,      // begin to gather a group's parameters, which collectives bring; kShow waits for the end. `again`: by hand
    kDropGather,       // forget a gather that was begun and not shown; `again`: also one that began by hand
    kEndForward,       // free the memory that the last gather of a forward has kept for the next gather
    kReduceReplicas,   // add up the oldest reduction of a group that collectives reduce over replicas, too
    kFinishTransfers,  // later work of the program's present stream sees all reduced gradients
    kReduceAdded,      // reduce gradients of added parameters
    kRefuseLate,       // fail if gradients have come after their unit's reduction began
    kRunHooks,         // run the program's hooks on reduced gradients
    kDropReductions,   // forget the reductions under way; `again`: warn if gradients are lost
    kDropGradients,    // drop the gradients of these units
    kForgetPending,    // forget what a reduction of any unit would have accumulated: the last action of a reset
    // ---- among the ranks, from kEnter on
    kEnter,            // this rank's rows of a model become the next version; `training`: a step may begin
    kLease,            // unshard a unit at the begin of its forward, or of its backward (`backward`)
    kCheckVersion,     // fail unless the version that the backward's forward read is current
    kUnshard,          // unshard a unit, for a prefetch list or by hand; `group`: this group only, for the schedule
    kForwardEnd,       // a unit's forward has ended; `reshard`: drop its lease
    kReshard,          // drop a unit's lease
    kAwaitReductions,  // wait for this rank's reductions in a model
    kGiveUp,           // this rank reads the group no more in this version
    kFinishPass,       // wait for a model's reductions; `reshard`: leave its version and open its write window
    kEndPass,          // the pass is over
    kOpenWindow,       // open a model's write window, for `text`
    kReset,            // drop leases and pending gradients: a new attempt begins
    kBeginOptimizer,   // the optimizer begins to write rows
    kEndOptimizer,     // the optimizer has written
  };

  Kind kind;
  int unit = kAllUnits;
  int group = -1;  // the number of the unit's group, for actions on one; -1: all
  int model = -1;
  View view = View::kSharded;
  bool backward = false, training = false, reshard = false, again = false, partial = false;
  bool ahead = false;                        // a gather begins before the forward or backward that it serves
  std::vector<std::uint64_t> versions = {};  // by model, those that the backward's forward read
  std::string text = {};
};

using Actions = std::vector<Action>;
inline constexpr std::size_t kNumActionKinds = static_cast<std::size_t>(Action::Kind::kEndOptimizer) + 1;

const char* name_of(Action::Kind kind);
const char* to_string(View view);
// One line, for transcripts and messages: "lease blocks.0 forward". `units`: the names of the units, "" for the root.
std::string to_string(const Action& action, const std::vector<std::string>& units);

}  // namespace shoal::fsdp
