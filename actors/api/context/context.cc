#include "actors/api/context/context.h"

#include <filesystem>

#include <asio/executor_work_guard.hpp>

#include <fmt/format.h>

#include "actors/session/session.h"

namespace shoal {

namespace api = actors::api;

namespace {

Context::Options named(Context::Options options, const actors::Session& session) {
  if (options.name_space.empty()) options.name_space = to_string(session.identity().job);
  return options;
}

}  // namespace

Context::Context(std::unique_ptr<actors::Session> session, Options options)
    : session_(std::move(session)),
      options_(named(std::move(options), *session_)),
      hub_(*session_, options_.caller),
      launcher_(hub_, {options_.program, options_.build_id, options_.name_space, options_.env, options_.working_dir}),
      functions_(std::make_unique<api::FunctionPools>(
          hub_, launcher_, options_.functions, api::FunctionPools::Options{.hand_over = options_.hand_over, .needed = options_.needed})),
      record_(options_.run_folder, std::filesystem::path(options_.program).filename()) {}

Context::~Context() = default;

JobId Context::job() const { return session_->identity().job; }
NodeId Context::node() const { return session_->identity().node; }
WorkerId Context::worker() const { return session_->identity().worker; }

void Context::set_actor(ActorId actor) {
  actor_ = actor;
  session_->loop().own([&] { session_->actors().handles().set_own_actor(actor); });
}

Result<void> Context::kill(ActorId actor, bool no_restart) { return session_->actors().kill(actor, !no_restart); }

Result<void> Context::remove(const PlacementGroup& group) { return session_->groups().remove(group.id); }

Result<std::vector<Context::Created>> Context::create(std::size_t count, bool mesh, const Class& actor_class, const ActorOptions& options,
                                                      const api::Encoded& args) {
  if (!options_.class_names.contains(actor_class.full_name)) {
    return fail(invalid_argument(fmt::format("this program does not register actor {}", actor_class.name))
                    .with_hint(fmt::format("name it in main: shoal::main<{}, ..>(argc, argv, run)", actor_class.name)));
  }
  if (count < 1 || count > actors::GangSpec::kMaxActors) {
    return fail(invalid_argument(fmt::format("a mesh has 1 to {} actors, not {}", actors::GangSpec::kMaxActors, count)));
  }
  const std::int32_t max_concurrency = options.max_concurrency.value_or(actor_class.on_loop ? kOnLoop : 1);
  if (const std::int32_t most = actor_class.on_loop ? kMaxOnLoop : kMaxThreads; max_concurrency < 1 || max_concurrency > most) {
    return fail(invalid_argument(fmt::format("max_concurrency is 1 to {}, not {}", most, max_concurrency)));
  }
  const bool makes_itself = options.detached || options.max_restarts != 0;
  if (mesh && (makes_itself || !options.name.empty())) {
    return fail(
        invalid_argument("name, detached and max_restarts apply to a single actor, not to a mesh").with_hint("spawn each actor by itself"));
  }
  if (options.get_if_exists && options.name.empty()) return fail(invalid_argument("get_if_exists needs a name"));
  if (makes_itself && (!args.deps.empty() || args.has_futures)) {
    return fail(
        invalid_argument("an actor that may be restarted or is detached takes values as arguments, because its caller may have ended")
            .with_hint("pass future.get() instead of the future"));
  }
  SHOAL_TRY(const auto resources, api::resources_of(options.num_cpus, options.num_gpus, options.memory, options.resources));
  SHOAL_TRY(actors::GangSpec spec, launcher_.gang(count, actor_class.name, resources, {options.where, options.env, options.working_dir}));
  if (options.detached) spec.launch.env.emplace_back("SHOAL_SELF_MADE", "1");
  const bool restarts = options.max_restarts != 0;
  api::Making making{std::string(actor_class.full_name), 0, static_cast<std::int32_t>(count), max_concurrency, args.value, restarts};
  spec.refuse_infeasible = options.refuse_infeasible;
  spec.name = options.name;
  if (!spec.name.empty()) spec.name_space = options.name_space.empty() ? options_.name_space : options.name_space;
  spec.get_if_exists = options.get_if_exists;
  spec.detached = options.detached;
  spec.max_restarts = options.max_restarts;
  spec.max_task_retries = options.max_task_retries;
  spec.handle = api::to_found(actor_class.full_name);
  if (makes_itself) {
    SHOAL_TRY(spec.creation_spec, api::to_creation_spec(making));
  }
  SHOAL_TRY(const auto exists, hub_.session.actors().create_gang(spec));

  std::vector<Created> out(exists ? 1 : count);
  if (exists) {
    SHOAL_OK(check_class(*exists, actor_class.full_name));
    const api::Reply there = api::ready_reply(hub_, {}, api::kConstruct, api::encode(api::List<>()));
    out[0] = {exists->row.id, there.future(), {}};
    return out;
  }
  // Keeps the objects that the arguments refer to, since a restart constructs the actor from the same arguments.
  const auto kept = makes_itself && !args.value.refs().empty() ? std::make_shared<const actors::Value>(args.value) : nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    out[i].id = spec.actors[i].id;
    making.rank = static_cast<std::int32_t>(i);
    SHOAL_TRY(out[i].constructed, launcher_.construct(out[i].id, making, args.deps));
  }
  hub_.session.loop().own([&] {
    actors::Handles& handles = hub_.session.actors().handles();
    // This process gets no report of a detached actor's end, so the objects are kept as long as the process lives.
    if (options.detached && kept) handles.pin(kept);
    for (Created& c : out) {
      if (!options.detached) c.share = handles.add(c.id, {std::string(actor_class.name), restarts, kept});
    }
  });
  return out;
}

Result<void> Context::check_class(const actors::FoundActor& found, std::string_view full_class_name) const {
  const auto theirs = api::class_of_found(found.handle);
  if (theirs && *theirs == full_class_name) return {};
  return fail(
      invalid_argument(fmt::format("the actor '{}' is {}, not a {}", found.row.name,
                                   theirs ? "a " + std::string(*theirs) : found.row.class_name + " of another language", full_class_name)));
}

Result<ActorId> Context::find(const std::string& name, const std::string& name_space, std::string_view full_class_name) {
  SHOAL_TRY(const auto found, hub_.session.actors().find({name, name_space.empty() ? options_.name_space : name_space}));
  SHOAL_OK(check_class(found, full_class_name));
  return found.row.id;
}

Result<PlacementGroup> Context::placement_group(const std::vector<std::map<std::string, double>>& bundles, const GroupOptions& options) {
  actors::GroupSpec spec;
  spec.id = hub_.session.groups().new_id();
  spec.job = hub_.session.identity().job;
  spec.name = options.name;
  if (!spec.name.empty()) spec.name_space = options.name_space.empty() ? options_.name_space : options.name_space;
  spec.strategy = options.strategy;
  if (!options.labels.empty()) spec.labels.assign(bundles.size(), options.labels);
  spec.together = options.together;
  spec.detached = options.detached;
  if (bundles.empty()) return fail(invalid_argument("a placement group has at least one bundle"));
  for (const auto& b : bundles) {
    SHOAL_TRY(auto resources, actors::Resources::from_amounts(b));
    spec.bundles.push_back(std::move(resources));
  }
  SHOAL_OK(hub_.session.groups().create(spec));
  SHOAL_TRY(auto nothing, api::encode(api::List<>()));
  return PlacementGroup{spec.id, Future<void>(api::Reply(hub_, {}, "placement group", hub_.session.groups().ready(spec.id, nothing)))};
}

Result<void> Context::drive(asio::io_context& loop, asio::cancellation_signal& cancel, const std::function<bool()>& ready,
                            Duration timeout) {
  actors::Session& session = hub_.session;
  const auto deadline = session.loop().deadline_in(timeout);
  const auto work = asio::make_work_guard(loop);
  Result<void> out;
  while (true) {
    const std::uint64_t seen = session.loop().own([this] { return hub_.wakeups; });
    loop.poll();
    if (ready()) return out;
    const auto woken = [&] { return hub_.wakeups != seen; };
    // After the cancellation the deadline counts no more: this waits for the end of the coroutine.
    const auto waited = out ? hub_.wait(woken, deadline) : session.loop().wait(woken);
    if (!waited && out) {
      out = fail(Error(waited.error()).in("coroutine"));
      cancel.emit(asio::cancellation_type::all);
    }
  }
}

}  // namespace shoal
