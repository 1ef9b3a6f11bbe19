#include "fsdp/step/action.h"

#include <array>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

// In the order of Action::Kind.
constexpr std::array kNames = {
    // on tensors, by the program's side
    "forget_casts",
    "check_rows",
    "adopt",
    "find_added",
    "show",
    "watch_whole",
    "compare_whole",
    "close_rows",
    "free_rows",
    "raise_found",
    "queue_pass_end",
    "begin_reduce",
    "finish_reduce",
    "keep",
    "update",
    "samples_used",
    "order_rows",
    "begin_gather",
    "drop_gather",
    "end_forward",
    "reduce_replicas",
    "finish_transfers",
    "reduce_added",
    "refuse_late",
    "run_hooks",
    "drop_reductions",
    "drop_gradients",
    "forget_pending",
    // among the ranks
    "enter",
    "lease",
    "check_version",
    "unshard",
    "forward_end",
    "reshard",
    "await_reductions",
    "give_up",
    "finish_pass",
    "end_pass",
    "open_window",
    "reset",
    "begin_optimizer",
    "end_optimizer",
};
static_assert(kNames.size() == kNumActionKinds);

}  // namespace

const char* name_of(Action::Kind kind) { return kNames[static_cast<std::size_t>(kind)]; }

const char* to_string(View view) {
  constexpr std::array kNames = {"sharded", "unsharded", "smaller_mesh", "guarded"};
  return kNames[static_cast<std::size_t>(view)];
}

std::string to_string(const Action& a, const std::vector<std::string>& units) {
  std::string out = name_of(a.kind);
  if (a.unit != kAllUnits) {
    const std::string& name = units[static_cast<std::size_t>(a.unit)];
    out += " " + (name.empty() ? "root" : name);
  }
  if (a.group > 0) out += fmt::format("/{}", a.group);
  if (a.model > 0) out += fmt::format(" model {}", a.model);
  if (a.kind == Action::Kind::kShow) out += fmt::format(" {}", to_string(a.view));
  if (a.kind == Action::Kind::kUnshard && a.group >= 0) out += a.backward ? " ahead of its backward" : " ahead of its forward";
  if (a.kind == Action::Kind::kLease) out += a.backward ? " backward" : " forward";
  if (a.ahead && !a.again) out += " ahead";
  if (a.training) out += " training";
  if (a.reshard) out += a.kind == Action::Kind::kFinishPass ? " and leave" : " and reshard";
  if (a.partial) out += " within the replica";
  if (a.again) out += a.kind == Action::Kind::kBeginGather || a.kind == Action::Kind::kDropGather ? " by hand" : " again";
  if (!a.text.empty()) out += ": " + a.text;
  return out;
}

}  // namespace shoal::fsdp
