#include "fsdp/shard/shard_actor.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/process/cpu_limit.h"

namespace shoal::fsdp {

namespace {

// A str in Python's pickle format: callers of every language can read a text.
actors::Value pickled_text(const std::string& text) {
  std::string out = "\x80\x04X";
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(text.size() >> shift & 0xff);
  out += text + ".";
  return *actors::Value::make({std::as_bytes(std::span(out))});
}

Error left() { return unavailable("this ShardActor's session is closed").with_reason("Closed"); }

}  // namespace

Result<std::shared_ptr<ShardActor>> ShardActor::place(actors::Session& session, Options options) {
  if (options.world_size < 1 || options.world_size > Control::kMaxRanks) {
    return fail(
        invalid_argument(fmt::format("a mesh of {} ranks is not possible: it may have 1 to {}", options.world_size, Control::kMaxRanks)));
  }
  if (options.replicas < 1 || options.world_size % options.replicas != 0) {
    return fail(invalid_argument(fmt::format("{} ranks cannot be divided into {} replicas", options.world_size, options.replicas)));
  }
  const ActorId id = session.new_id<ActorId>();
  std::shared_ptr<ShardActor> actor(new ShardActor(session, std::move(options), id));
  actors::HostActor request;
  request.actor = id;
  request.class_name = "ShardActor";
  request.gang_key = actor->options_.gang;
  request.rank = actor->options_.place_rank >= 0 ? actor->options_.place_rank : actor->options_.rank;
  request.world_size = actor->options_.place_rank >= 0 ? actor->options_.place_size : actor->options_.world_size;
  request.attributes = {{"rows", "0"}, {"bytes", "0"}, {"units", "0"}};
  SHOAL_TRY(actor->placed_, session.hosting().place(std::move(request), actor, actor->options_.place_timeout));
  return actor;
}

ShardActor::~ShardActor() { leave(); }

void ShardActor::leave() {
  if (!is_open()) return;
  std::vector<std::shared_ptr<ShardedModel>> models;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : models_) models.push_back(weak.lock());
    kept_.clear();
  }
  for (const auto& weak : replicas_) {
    if (const auto link = weak.lock()) link->stop();
  }
  for (const auto& model : models) {
    if (model) model->leave();
  }
  free_unheld(arenas_);
  left_ = true;
}

void ShardActor::give_back(const std::vector<std::string>& arenas, std::int64_t rows, std::size_t bytes) {
  if (session_->forked()) return;  // a thread that does not exist here may hold the mutex
  {
    const std::lock_guard lock(mutex_);
    rows_ -= rows;
    bytes_ -= bytes;
    std::erase_if(models_, [](const auto& weak) { return weak.expired(); });
  }
  if (left_) return;
  for (const auto& key : arenas) {
    const auto held = std::ranges::find(arenas_, key);  // one entry per open: other opens of this process still count
    if (held == arenas_.end()) continue;
    arenas_.erase(held);
    free_unheld({key});
  }
  if (!members_.empty()) report_attributes();
}

Result<void> ShardActor::await_gang() {
  if (!members_.empty()) return {};
  if (!is_open()) return fail(left());
  Result<void> waited;
  session_->call([&](actors::Session& s) { waited = s.loop().wait([this] { return placed_.ready() || session_->ending(); }); });
  SHOAL_OK(std::move(waited));
  if (!placed_.ready()) return fail(left());
  const auto& placed = placed_.peek();
  if (!placed) return fail(Error(placed.error()).in(fmt::format("placing ShardActor rank {} of {}", options_.rank, options_.world_size)));
  members_ = placed->members;
  generation_ = placed->generation;
  return {};
}

std::string ShardActor::memory_name() const {
  const auto& hosts = options_.model.host_of_rank;
  return hosts.empty() ? options_.gang : fmt::format("{}/host-{}", options_.gang, hosts[static_cast<std::size_t>(options_.rank)]);
}

Result<Fd> ShardActor::open_memory(const std::string& key, std::size_t bytes, int member) {
  return open_arena(key, bytes, member, /*lasting=*/false);
}

Result<Fd> ShardActor::open_lasting(const std::string& key, std::size_t bytes) {
  return open_arena(key, bytes, /*member=*/-1, /*lasting=*/true);
}

Result<Fd> ShardActor::open_arena(const std::string& key, std::size_t bytes, int member, bool lasting) {
  Result<Fd> memory = fail(left());
  session_->call([&](actors::Session& s) { memory = s.node().open_arena(key, bytes, member, lasting); });
  if (memory) arenas_.push_back(key);
  return memory;
}

Result<std::shared_ptr<ShardedUnit>> ShardActor::add_unit(std::string name, std::vector<Parameter> parameters, ShardedUnit::Options options,
                                                          const std::string& arena_key, const ShardedUnit* before) {
  if (const auto dead = killed()) return fail(*dead);
  if (!is_open()) return fail(left());
  if (parameters.size() > Control::kMaxParameters)
    return fail(invalid_argument(
        fmt::format("unit {} has {} parameters, but at most {} are possible", name, parameters.size(), Control::kMaxParameters)));
  SHOAL_TRY(Layout layout, Layout::make(std::move(parameters)));
  const std::string key = arena_key.empty() ? fmt::format("{}/unit-{}", memory_name(), num_units_) : arena_key;
  SHOAL_TRY(const Fd arena, open_memory(key, layout.arena_bytes(grid())));
  ++num_units_;
  const int shard = grid().shard_of(options_.rank);
  const auto rows = layout.owned_rows(grid().shards(), shard);
  const auto bytes = layout.owned_bytes(grid().shards(), shard);
  SHOAL_TRY(std::unique_ptr<ShardedUnit> owned, ShardedUnit::make(std::move(name), std::move(layout), arena, options_.rank, grid(), options,
                                                                  before != nullptr && before->arena_key() == key ? before : nullptr));
  owned->set_arena_key(key);
  if (arena_key.empty()) populate_share(owned->memory());
  std::shared_ptr<ShardedUnit> unit(owned.release(), [actor = weak_from_this(), key, rows, bytes](ShardedUnit* gone) {
    delete gone;
    if (const auto alive = actor.lock()) alive->give_back({key}, rows, bytes);
  });
  {
    const std::lock_guard lock(mutex_);
    rows_ += rows;
    bytes_ += bytes;
  }
  return unit;
}

void ShardActor::populate_share(const runtime::Mapping& memory) const {
  const Hosts hosts = options_.model.hosts(options_.world_size);
  memory.populate_part(hosts.index_of(options_.rank), hosts.ranks(hosts.host_of(options_.rank)).size());
}

Result<std::shared_ptr<ShardedModel>> ShardActor::make_model(Units units, int slots) {
  if (const auto dead = killed()) return fail(*dead);
  if (slots < 1 || slots > Control::kMaxSlots) {
    return fail(
        invalid_argument(fmt::format("gradients of {} units in flight are not possible: there may be 1 to {}", slots, Control::kMaxSlots)));
  }
  SHOAL_OK(await_gang());
  const std::string key = fmt::format("{}/model-{}", memory_name(), num_models_);
  auto options = options_.model;
  options.slots = slots;
  const Hosts hosts = options.hosts(options_.world_size);
  const std::size_t control_bytes = ShardedModel::control_bytes(units, options_.world_size);
  const std::size_t slot_bytes = ShardedModel::slot_bytes(units, hosts, options_.rank, slots);
  SHOAL_TRY(const Fd control, open_memory(key + "/control", control_bytes, options_.rank));
  SHOAL_TRY(const Fd gradients, open_memory(key + "/gradients", slot_bytes));
  SHOAL_TRY(runtime::Mapping control_memory, runtime::map(control, control_bytes, runtime::Access::kReadWrite));
  SHOAL_TRY(runtime::Mapping slot_memory, runtime::map(gradients, slot_bytes, runtime::Access::kReadWrite));
  if (hosts.num_hosts() > 1) {
    SHOAL_TRY(options.layer, options_.open_layer(fmt::format("{}/model-{}", options_.gang, num_models_)));
  }
  ++num_models_;
  // Ranks that outnumber the cores must not spin.
  if (hosts.ranks(hosts.host_of(options_.rank)).size() > static_cast<std::size_t>(runtime::usable_cpus())) options.waits.spins = 0;
  auto owned = std::make_unique<ShardedModel>(options_.rank, grid(), std::move(units), std::move(control_memory), std::move(slot_memory),
                                              clock_, std::move(options));
  std::shared_ptr<ShardedModel> model(owned.release(), [actor = weak_from_this(), key](ShardedModel* gone) {
    delete gone;
    if (const auto alive = actor.lock()) alive->give_back({key + "/control", key + "/gradients"}, 0, 0);
  });
  {
    const std::lock_guard lock(mutex_);
    models_.push_back(model);
    if (killed_) model->peers().mark_gone(killed_->message());
  }
  report_attributes();
  return model;
}

Result<std::shared_ptr<SharedArrays>> ShardActor::share_arrays(const Units& units, std::vector<StateSpec> states, const std::string& key,
                                                               const std::shared_ptr<SharedArrays>& before) {
  if (!is_open()) return fail(left());
  if (!options_.model.host_of_rank.empty() || !SharedArrays::possible(units)) return std::shared_ptr<SharedArrays>();
  const std::string name = key.empty() ? fmt::format("{}/arrays-{}", memory_name(), num_shared_++) : key;
  const auto open = [this](const std::string& k, std::size_t bytes) { return open_lasting(k, bytes); };
  SHOAL_TRY(auto owned, SharedArrays::open(units, std::move(states), name, before, open));
  if (key.empty()) owned->populate(units);
  return std::shared_ptr<SharedArrays>(owned.release(), [actor = weak_from_this(), name](SharedArrays* gone) {
    delete gone;
    if (const auto alive = actor.lock()) alive->give_back({name}, 0, 0);
  });
}

Result<std::shared_ptr<ProtectedShard>> ShardActor::protect(const ShardedModel& model, const std::vector<StateSpec>& states,
                                                            std::uint64_t step, std::shared_ptr<SharedArrays> shared) {
  if (!is_open()) return fail(left());
  const auto open = [this](const std::string& key, std::size_t bytes) { return open_lasting(key, bytes); };
  for (const auto& unit : model.units()) {  // the arenas become lasting: they outlive this process
    SHOAL_TRY(const Fd memory, open(unit->arena_key(), unit->arena().size()));
    give_back({unit->arena_key()}, 0, 0);
  }
  SHOAL_TRY(auto owned, ProtectedShard::make(model.units(), states, step, fmt::format("{}/protected-{}", memory_name(), num_protected_++),
                                             std::move(shared), open));
  return std::shared_ptr<ProtectedShard>(owned.release(), [actor = weak_from_this()](ProtectedShard* gone) {
    const std::string key = gone->key();
    delete gone;
    if (const auto alive = actor.lock()) alive->give_back({key}, 0, 0);
  });
}

Result<std::shared_ptr<ReplicaLink>> ShardActor::replicate(const std::shared_ptr<ShardedModel>& model,
                                                           const std::shared_ptr<ProtectedShard>& shard, const std::vector<int>& buddies) {
  if (!is_open()) return fail(left());
  ReplicaLink::Options options;
  options.clock = clock_;
  options.buddy = buddies.at(static_cast<std::size_t>(options_.rank));
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (buddies[static_cast<std::size_t>(rank)] != options_.rank) continue;
    SHOAL_TRY(auto spec, shard->replica_spec(rank));
    SHOAL_TRY(const std::size_t bytes, StepRecord::bytes_for(spec));
    const std::string key = shard->replica_key_of(rank);
    SHOAL_TRY(const Fd memory, open_lasting(key, bytes));
    keys.push_back(key);
    SHOAL_TRY(runtime::Mapping mapped, runtime::map(memory, bytes, runtime::Access::kReadWrite));
    options.wards.push_back({rank, std::move(mapped), std::move(spec)});
  }
  SHOAL_TRY(options.layer, options_.open_layer(fmt::format("{}/replicas-{}", options_.gang, num_protected_)));
  options.wait = [model](const std::function<bool()>& ready, const std::string& for_what, int missing) {
    return model->peers().wait(ready, {for_what, [missing] { return missing; }, /*for_link=*/true});
  };
  options.changed = [model] { model->peers().wake(); };
  auto owned = std::make_unique<ReplicaLink>(shard->update().step_record(), shard->arenas(), std::move(options));
  std::shared_ptr<ReplicaLink> link(owned.release(), [actor = weak_from_this(), keys, shard](ReplicaLink* gone) {
    delete gone;
    if (const auto alive = actor.lock()) alive->give_back(keys, 0, 0);
  });
  replicas_.push_back(link);
  return link;
}

Result<std::shared_ptr<AdoptedShard>> ShardActor::adopt(const std::string& key) {
  if (!is_open()) return fail(left());
  SHOAL_TRY(AdoptedShard shard, AdoptedShard::open(key, [this](const std::string& name) -> Result<Fd> {
              Result<Fd> memory = fail(left());
              session_->call([&](actors::Session& s) { memory = s.node().find_arena(name); });
              if (memory) arenas_.push_back(name);
              return memory;
            }));
  return std::make_shared<AdoptedShard>(std::move(shard));
}

void ShardActor::free_unheld(const std::vector<std::string>& keys) {
  if (left_) return;
  session_->call([&](actors::Session& s) {
    for (const auto& key : keys) s.node().drop_arena(key);
  });
}

void ShardActor::report_attributes() {
  actors::SetAttributes m;
  m.actor = id_;
  {
    const std::lock_guard lock(mutex_);
    m.attributes = {{"rows", std::to_string(rows_)}, {"bytes", std::to_string(bytes_)}, {"units", std::to_string(num_units_)}};
  }
  session_->call([&](actors::Session& s) { s.hosting().set_attributes(m); });
}

std::optional<Error> ShardActor::killed() const {
  const std::lock_guard lock(mutex_);
  return killed_;
}

std::string ShardActor::describe() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json out = {
      {"class", "ShardActor"}, {"rank", options_.rank}, {"world_size", options_.world_size}, {"rows", rows_}, {"bytes", bytes_}};
  return out.dump();
}

void ShardActor::on_call(actors::Incoming incoming) {
  if (incoming.call.method == "describe") return incoming.reply(pickled_text(describe()));
  incoming.responder.fail(not_found("a ShardActor has no method " + incoming.call.method).with_hint("describe"));
}

void ShardActor::on_kill(const Error& cause) {
  const std::lock_guard lock(mutex_);
  killed_ = cause;
  for (const auto& weak : models_) {
    auto model = weak.lock();
    if (!model) continue;
    model->peers().mark_gone(fmt::format("ShardActor rank {} ended: {}", options_.rank, cause.message()));
    kept_.push_back(std::move(model));
  }
}

}  // namespace shoal::fsdp
