#include "actors/api/context/launch.h"

#include <filesystem>

#include <fmt/format.h>

#include "actors/api/context/handle.h"
#include "actors/session/session.h"

namespace shoal::actors::api {

namespace {

// Around a class name these make a pickle, which calls shoal._handle._foreign(class name) in Python.
constexpr std::string_view kFoundBegin = "cshoal._handle\n_foreign\n(V", kFoundEnd = "\ntR.";

}  // namespace

std::string to_found(std::string_view full_class_name) { return fmt::format("{}{}{}", kFoundBegin, full_class_name, kFoundEnd); }

std::optional<std::string_view> class_of_found(std::string_view handle) {
  if (!handle.starts_with(kFoundBegin) || !handle.ends_with(kFoundEnd)) return std::nullopt;
  handle.remove_prefix(kFoundBegin.size());
  handle.remove_suffix(kFoundEnd.size());
  return handle;
}

// [class, rank, world_size, threads, restart flag, pieces of the arguments]
Result<std::string> to_creation_spec(const Making& making) {
  CborWriter to;
  to.head(Major::kArray, 6);
  to.text(making.full_class_name);
  to.integer(making.rank);
  to.integer(making.world_size);
  to.integer(making.max_concurrency);
  to.simple(making.restarts ? kTrue : kFalse);
  const auto pieces = making.args.pieces();
  to.head(Major::kArray, pieces.size());
  for (const auto& p : pieces) to.bytes(p);
  if (to.written().size() > GangSpec::kMaxCreationSpec) {
    return fail(invalid_argument(fmt::format("the creation spec of an actor that may be restarted can have {} bytes, not {}",
                                             GangSpec::kMaxCreationSpec, to.written().size()))
                    .with_hint("let the actor fetch large values itself"));
  }
  const auto written = std::string_view(reinterpret_cast<const char*>(to.written().data()), to.written().size());
  return std::string(written);
}

Result<Making> from_creation_spec(std::string_view creation_spec) {
  CborReader from(std::as_bytes(std::span(creation_spec)));
  Making out;
  std::uint64_t n = 0;
  Value::Pieces pieces;
  bool good = from.begin(Major::kArray, n, "a creation spec") && n == 6 && read_item(from, out.full_class_name) &&
              read_item(from, out.rank) && read_item(from, out.world_size) && read_item(from, out.max_concurrency) &&
              read_item(from, out.restarts) && from.begin(Major::kArray, n, "pieces");
  for (std::uint64_t i = 0; good && i < n; ++i) {
    std::string_view piece;
    good = from.run(Major::kBytes, piece, "a piece");
    pieces.push_back(std::as_bytes(std::span(piece)));
  }
  if (!good || !from.at_end()) return fail(internal("malformed creation spec: " + from.why()));
  SHOAL_TRY(out.args, Value::make(pieces));
  return out;
}

Result<Resources> resources_of(double num_cpus, double num_gpus, double memory, std::map<std::string, double> others) {
  for (const auto& [name, amount] : {std::pair{"CPU", num_cpus}, {"GPU", num_gpus}, {"memory", memory}}) {
    if (amount != 0) others[name] = amount;
  }
  return Resources::from_amounts(others);
}

Result<GangSpec> Launcher::gang(std::size_t count, std::string_view class_name, const Resources& each, const Surroundings& around) const {
  if (options_.build_id.empty()) {
    return fail(invalid_argument("this program has no build id, so its workers cannot be distinguished from those of another build")
                    .with_hint("link it with -Wl,--build-id"));
  }
  namespace fs = std::filesystem;
  std::error_code failed;
  const std::string& wanted = around.working_dir.empty() ? options_.working_dir : around.working_dir;
  const fs::path folder = wanted.empty() ? fs::current_path(failed) : fs::absolute(wanted, failed);
  if (!wanted.empty() && !fs::is_directory(folder, failed)) {
    return fail(invalid_argument(fmt::format("the working_dir {} is not a folder", wanted)).with_hint("name a path on this host"));
  }
  Session& session = hub_.session;
  GangSpec spec;
  spec.id = session.new_id<GangId>();
  spec.job = session.identity().job;
  for (std::size_t i = 0; i < count; ++i) spec.actors.push_back({session.new_id<ActorId>(), std::string(class_name), each});
  const shoal::Where& where = around.where;
  spec.where = {where.group, where.bundle, where.node, where.soft, where.at_once, where.spread, where.labels, where.prefers};
  spec.launch.kind = Launch::Kind::kNativeWorker;
  spec.launch.program = options_.program;
  spec.launch.build_id = options_.build_id;
  spec.launch.cwd = folder;
  auto env = around.env;
  env.insert(options_.env.begin(), options_.env.end());  // entries that exist already are kept
  std::string names;
  for (const auto& [name, value] : env) names += (names.empty() ? "" : ":") + name;
  spec.launch.env.assign(env.begin(), env.end());
  spec.launch.env.emplace_back("SHOAL_NAMESPACE", options_.name_space);
  if (!names.empty()) spec.launch.env.emplace_back(kEnvNames, names);
  return spec;
}

Result<ValueFuture> Launcher::construct(ActorId actor, const Making& making, std::vector<ValueFuture> deps) const {
  Call call;
  call.actor = actor;
  call.method = kConstruct;
  call.caller = hub_.caller;
  SHOAL_TRY(call.args,
            encode(ConstructHead(), making.full_class_name, making.rank, making.world_size, making.max_concurrency, making.restarts));
  call.deps = {making.args};
  return hub_.session.calls().call(std::move(call), std::move(deps));
}

}  // namespace shoal::actors::api
