#include "actors/api/worker.h"

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace shoal::actors::api {

namespace {

struct Answer {
  Incoming incoming;
  Result<Value> result;
};

// Sends what is due, then waits for the next call: one taking of the loop for both.
Incoming next(Session& session, CallQueue& queue, std::optional<Answer> due) {
  std::optional<Incoming> out;
  const auto turn = [&] {
    if (due) {
      // Answers to calls that arrived together go together.
      if (due->result) {
        due->incoming.reply(*due->result, queue.empty() ? runtime::Flush::kNow : runtime::Flush::kLater);
      } else {
        due->incoming.responder.fail(due->result.error());
      }
      due.reset();
    }
    if (queue.empty()) return false;
    out.emplace(queue.pop());
    return true;
  };
  while (!session.wait(turn)) {  // interrupted, which is nothing to a worker
  }
  return *std::move(out);
}

Result<std::unique_ptr<Instance>> construct(Context& context, const Classes& classes, const Call& call) {
  SHOAL_TRY(auto head, decode(ConstructHead(), call.args));
  const auto& [class_name, rank, world_size] = head;
  const auto it = classes.find(class_name);
  if (it == classes.end()) return fail(not_found(fmt::format("this program has no actor {}", class_name)));
  if (call.deps.size() != 1) return fail(invalid_argument("a constructor without its arguments"));
  return it->second(Place{Rank{rank}, world_size, &context}, call.deps[0]);
}

}  // namespace

int serve(Context& context, const Classes& classes) {
  Session& session = context.session();
  const auto queue = std::make_shared<CallQueue>();
  session.own([&] { session.actor_host().set_default(queue); });
  if (const auto ready = session.ready(); !ready) {
    std::fprintf(stderr, "%s\n", ready.error().to_string().c_str());
    return 1;
  }
  std::unique_ptr<Instance> instance;
  std::optional<Answer> due;
  while (true) {
    Incoming incoming = next(session, *queue, std::exchange(due, std::nullopt));
    const Call& call = incoming.call;
    Result<Value> result = fail(invalid_argument("the actor is not constructed yet"));
    if (call.method == kConstruct) {
      auto made = instance ? Result<std::unique_ptr<Instance>>(fail(invalid_argument("the actor is constructed already")))
                           : construct(context, classes, call);
      if (!made && !instance) {  // its node tells whoever calls it from now on what it printed
        std::fprintf(stderr, "%s\n", made.error().to_string().c_str());
        session.own([&] { incoming.responder.fail(made.error()); });
        // At once: calls that wait here go unanswered, so that they fail with the death that the node tells of.
        std::fflush(nullptr);
        std::_Exit(1);
      }
      if (made) instance = *std::move(made);
      result = made ? encode(List<>()) : Result<Value>(fail(made.error()));
    } else if (instance) {
      result = instance->call(call.method, call.args);
    }
    due.emplace(Answer{std::move(incoming), std::move(result)});
  }
}

}  // namespace shoal::actors::api
