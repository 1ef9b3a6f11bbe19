// Events of placement groups: resources that are reserved together, bundle by bundle, and given to actors later.
#include "scheduler/state/bounds.h"
#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/explain.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

Result<void> on(Parts& s, const GroupRequested& event) {
  const auto& spec = event.spec;
  if (const auto known = s.groups.find(spec.id); known != s.groups.end() && (spec.detached || known->second.row.job == spec.job)) {
    return {};  // a repeated request, whose answer was lost with a head or a connection
  }
  if (!spec.id || s.groups.contains(spec.id)) {
    return fail(invalid_argument("placement group " + to_string(spec.id) + " exists already"));
  }
  if (spec.bundles.empty()) return fail(invalid_argument("the placement group has no bundles"));
  if (!spec.labels.empty() && spec.labels.size() != spec.bundles.size()) {
    return fail(invalid_argument("the placement group has labels for bundles that it does not have"));
  }
  for (const auto& bundle : spec.bundles) {
    if (bundle.empty()) return fail(invalid_argument("a bundle of a placement group requests nothing"));
  }
  SHOAL_OK(check_bounds(spec));
  if (s.jobs.living(spec.job) == nullptr) return fail(not_found("the cluster has no running job " + to_string(spec.job)));
  SHOAL_OK(s.groups.request(spec, s.turn.next_order));
  ++s.turn.next_order;
  s.queue.add({{}, {}, spec.id, s.turn.now});
  place_pending(s);
  explain_newcomer(s);
  return {};
}

void on(Parts& s, const GroupRemoved& event) {
  if (s.groups.living(event.group) == nullptr) return;
  drop_group(s.queue, event.group);
  remove_group(s, event.group, cancelled("its placement group was removed").with_reason("GroupRemoved"));
  place_pending(s);
}

}  // namespace shoal::scheduler
