#include "actors/api/worker/program.h"

#include <cstdlib>
#include <thread>

#include "actors/session/session.h"

namespace shoal::actors::api {

void runs_functions_for(Context& context, WorkerId creator, NodeId node) {
  Session& session = context.session();
  context.set_actor({});
  session.loop().own([&] { context.hub().function_in = std::this_thread::get_id(); });
  if (node != session.identity().node) return;  // this node would not notice the end of a keeper on another node
  // Fetches an object that only the keeper could make and never makes. So the fetch fails when the keeper ends, and shows that.
  const auto gone = session.objects().fetch({session.identity().job, session.new_id<ObjectId>()}, creator);
  session.loop().own([&] { gone.then([](const Result<Value>&) { std::_Exit(1); }); });
}

}  // namespace shoal::actors::api
