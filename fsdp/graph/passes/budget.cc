#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/offsets.h"
#include "fsdp/graph/passes/passes.h"

namespace shoal::fsdp {

std::size_t leased_bytes(const StepGraph& graph, const std::vector<std::size_t>& unsharded_bytes) {
  std::vector<Buffer> leases;
  std::vector<std::ptrdiff_t> held(unsharded_bytes.size(), -1);  // by unit: index into leases
  for (const auto& n : graph.nodes()) {
    if (n.op != Op::kUnshard && n.op != Op::kReshard) continue;
    for (std::size_t u = 0; u < held.size(); ++u) {
      if (!is_for(n, static_cast<std::int32_t>(u))) continue;
      if (n.op == Op::kUnshard) {
        held[u] = static_cast<std::ptrdiff_t>(leases.size());
        leases.push_back({unsharded_bytes[u], n.id, -1});
      } else if (held[u] >= 0) {
        leases[static_cast<std::size_t>(held[u])].last = n.id;
      }
    }
  }
  return place(graph, leases).bytes;
}

Result<Fitted> fit(const StepGraph& graph, const Budget& budget) {
  const std::size_t num_units = graph.units().size();
  if (budget.unsharded_bytes.size() != num_units)
    return fail(
        invalid_argument(fmt::format("the bytes of {} units were given for a step of {} units", budget.unsharded_bytes.size(), num_units)));
  // Units in the order of their forwards. The first unit's lease would be held longest, so that unit is the first to reshard.
  std::vector<std::int32_t> in_order;
  for (const auto& n : graph.nodes()) {
    if (n.op == Op::kForward && n.unit >= 0 && std::find(in_order.begin(), in_order.end(), n.unit) == in_order.end())
      in_order.push_back(n.unit);
  }
  const auto plan = [&](std::size_t num_resharded, int depth) -> Result<Fitted> {
    Fitted out{{depth, {}}, std::vector<bool>(num_units), 0};
    for (std::size_t i = 0; i < num_resharded; ++i) out.reshard_after_forward[static_cast<std::size_t>(in_order[i])] = true;
    PassOptions options;
    options.prefetch = out.prefetch;
    options.reshard_after_forward = out.reshard_after_forward;
    SHOAL_TRY(const Rewritten passed, apply(graph, options));
    out.bytes = budget.fixed_bytes + leased_bytes(passed.graph, budget.unsharded_bytes);
    return out;
  };
  SHOAL_TRY(Fitted found, plan(in_order.size(), 0));
  if (found.bytes > budget.bytes) {
    return fail(resource_exhausted(
                    fmt::format("a step of this model needs at least {} bytes, but the memory budget is {}", found.bytes, budget.bytes))
                    .with_reason("MemoryBudget")
                    .with_hint(fmt::format("memory_budget={} is the smallest sufficient value", found.bytes)));
  }
  // The fewest reshards that fit with unshards on demand, then the deepest prefetch that fits.
  std::size_t low = 0, high = in_order.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    SHOAL_TRY(const Fitted tried, plan(middle, 0));
    (tried.bytes <= budget.bytes ? high : low) = tried.bytes <= budget.bytes ? middle : middle + 1;
  }
  for (int depth = budget.max_prefetch; depth >= 0; --depth) {
    SHOAL_TRY(found, plan(high, depth));
    if (found.bytes <= budget.bytes) break;
  }
  return found;
}

}  // namespace shoal::fsdp
