// The worker's side: constructs this process's actor, and executes calls on it until it is released.
#pragma once

#include "actors/api/context/context.h"
#include "actors/api/worker/instance.h"

namespace shoal::actors::api {

// Takes calls until the process is killed, and ends the process if the actor cannot be constructed. Returns only when the node refuses
// the worker. `makes_itself`: the actor is restarted or detached, and made from its creation spec at the head.
int serve(Context& context, const Classes& classes, bool makes_itself);

}  // namespace shoal::actors::api
