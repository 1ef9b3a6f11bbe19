#include "actors/api/context.h"

#include <filesystem>

#include <asio/executor_work_guard.hpp>

#include <fmt/format.h>

namespace shoal {

namespace api = actors::api;

namespace {

Result<actors::Resources> resources_of(const ActorOptions& o) {
  std::map<std::string, double> amounts = o.resources;
  for (const auto& [name, amount] : {std::pair{"CPU", o.num_cpus}, {"GPU", o.num_gpus}, {"memory", o.memory}}) {
    if (amount != 0) amounts[name] = amount;
  }
  return actors::Resources::of(amounts);
}

}  // namespace

Context::Context(std::unique_ptr<actors::Session> session, Options options)
    : session_(std::move(session)), options_(std::move(options)), hub_{*session_, options_.caller} {}

Result<std::vector<std::pair<ActorId, actors::ValueFuture>>> Context::create(std::size_t count, std::string_view class_name,
                                                                             std::string_view full_class_name, const ActorOptions& options,
                                                                             const actors::Value& args) {
  if (!options_.class_names.contains(full_class_name)) {
    return fail(invalid_argument(fmt::format("the workers of this program do not know the actor {}", class_name))
                    .with_hint(fmt::format("tell shoal::main: shoal::main<{}, ..>(argc, argv, run)", class_name)));
  }
  if (count < 1 || count > actors::GangSpec::kMaxActors) {
    return fail(invalid_argument(fmt::format("a mesh has 1 to {} actors, not {}", actors::GangSpec::kMaxActors, count)));
  }
  if (options_.build_id.empty()) {
    return fail(invalid_argument("this program has no build id, so its workers could not be told from those of another build")
                    .with_hint("link it with -Wl,--build-id"));
  }
  SHOAL_TRY(const auto resources, resources_of(options));
  actors::Session& session = hub_.session;
  actors::GangSpec spec;
  spec.id = session.new_id<GangId>();
  spec.job = session.job();
  for (std::size_t i = 0; i < count; ++i) spec.actors.push_back({session.new_id<ActorId>(), std::string(class_name), resources});
  spec.refuse_infeasible = options.refuse_infeasible;
  spec.launch.kind = actors::Launch::Kind::kNativeWorker;
  spec.launch.program = options_.program;
  spec.launch.build_id = options_.build_id;
  std::error_code ignored;
  spec.launch.cwd = std::filesystem::current_path(ignored);
  spec.launch.env.assign(options.env.begin(), options.env.end());
  SHOAL_OK(session.create_gang(spec));

  std::vector<std::pair<ActorId, actors::ValueFuture>> out;
  for (std::size_t i = 0; i < count; ++i) {
    actors::Call call;
    call.actor = spec.actors[i].id;
    call.method = api::kConstruct;
    call.caller = hub_.caller;
    SHOAL_TRY(call.args,
              api::encode(api::ConstructHead(), full_class_name, static_cast<std::int32_t>(i), static_cast<std::int32_t>(count)));
    call.deps = {args};
    const ActorId id = call.actor;
    out.emplace_back(id, session.call(std::move(call), {}));
  }
  return out;
}

api::Reply Context::there_already(const api::Callee& callee) {
  auto nothing = api::encode(api::List<>());
  const runtime::Promise<actors::Value> promise;
  promise.set(std::move(nothing));
  return api::Reply(hub_, callee, api::kConstruct, promise.future());
}

Result<void> Context::drive(asio::io_context& here, asio::cancellation_signal& cancel, const std::function<bool()>& done,
                            Duration timeout) {
  actors::Session& session = hub_.session;
  const auto deadline = session.deadline_in(timeout);
  const auto work = asio::make_work_guard(here);
  Result<void> out;
  while (true) {
    const std::uint64_t seen = session.own([this] { return hub_.wakeups; });
    here.poll();
    if (done()) return out;
    const auto woken = [&] { return hub_.wakeups != seen; };
    const auto waited = session.wait(woken, out ? deadline : runtime::LoopThread::kForever);
    if (!waited && out) {
      out = fail(Error(waited.error()).in("coroutine"));
      cancel.emit(asio::cancellation_type::all);
    }
  }
}

}  // namespace shoal

namespace shoal::actors::api {

Reply call(Hub& hub, const Callee& callee, std::string_view method, Result<Value> args) {
  if (!args) {
    const runtime::Promise<Value> promise;
    promise.set(fail(std::move(args).error()));
    return Reply(hub, callee, method, promise.future());
  }
  Call call;
  call.actor = callee.actor;
  call.method = method;
  call.caller = hub.caller;
  call.args = *std::move(args);
  return Reply(hub, callee, method, hub.session.call(std::move(call), {}));
}

}  // namespace shoal::actors::api
