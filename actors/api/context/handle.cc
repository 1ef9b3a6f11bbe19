#include "actors/api/context/handle.h"

#include "actors/session/session.h"

namespace shoal::actors::api {

Reply call(Hub& hub, const Callee& callee, std::string_view method, Result<Encoded> args) {
  if (!args) return ready_reply(hub, callee, method, fail(std::move(args).error()));
  Call call;
  call.actor = callee.actor;
  call.method = method;
  call.caller = hub.caller;
  call.args = std::move(args->value);
  call.parent = this_threads_call.key;
  return Reply(hub, callee, method, hub.session.calls().call(std::move(call), std::move(args->deps)));
}

// Writes [class, actor]. A handle that counts also has [.., job, object, home] of the actor's lifetime token.
void write_handle(CborWriter& to, Hub* hub, std::string_view full_class_name, const HandleItem& handle) {
  if (hub == nullptr) return to.simple(kNull);
  auto token = hub->session.loop().own([&] { return hub->session.actors().handles().leaves(handle.actor, handle.share); });
  to.head(Major::kArray, token ? 5 : 2);
  to.text(full_class_name);
  write_item(to, handle.actor);
  if (!token) return;
  write_item(to, token->object.job);
  write_item(to, token->object.id);
  write_item(to, token->object.home);
  to.refers_to(token->object, std::move(token->hold), CborWriter::Target::kActor);
}

bool read_handle(CborReader& from, std::string_view full_class_name, std::string_view class_name, HandleItem& out) {
  if (from.take_if(kNull)) return true;
  std::uint64_t n = 0;
  std::string theirs;
  ObjectKey token;
  if (!from.begin(Major::kArray, n, "a handle") || !from.enter()) return false;
  if (n != 2 && n != 5) return from.fail("a handle has 2 or 5 items");
  if (!read_item(from, theirs) || !read_item(from, out.actor)) return false;
  if (n == 5 && (!read_item(from, token.job) || !read_item(from, token.id) || !read_item(from, token.home))) return false;
  from.leave();
  if (theirs != full_class_name) return from.fail("a handle of a " + theirs);
  if (from.hub == nullptr) return from.fail("a handle was received without a Context");
  Session& session = from.hub->session;
  if (const auto known = session.actors().know(out.actor, std::string(class_name)); !known) return from.fail(known.error().message());
  if (n == 5) out.share = session.loop().own([&] { return session.actors().handles().borrowed(out.actor, token); });
  return true;
}

}  // namespace shoal::actors::api
