#include "fsdp/shard/sharded_model.h"

#include <utility>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

std::vector<const Layout*> layouts_of(const Units& units) {
  std::vector<const Layout*> out;
  for (const auto& u : units) out.push_back(&u->layout());
  return out;
}

std::vector<std::string> names_of(const Units& units) {
  std::vector<std::string> out;
  for (const auto& u : units) out.push_back(u->name());
  return out;
}

}  // namespace

Hosts ShardedModel::Options::hosts(int world_size) const {
  return Hosts(host_of_rank.empty() ? std::vector<int>(static_cast<std::size_t>(world_size)) : host_of_rank, places);
}

std::size_t ShardedModel::slot_bytes(const Units& units, const Hosts& hosts, int rank, int slots) {
  return Slots::bytes(hosts, hosts.host_of(rank), layouts_of(units), slots);
}

ShardedModel::ShardedModel(int rank, Grid grid, Units units, runtime::Mapping control, runtime::Mapping slots,
                           std::shared_ptr<runtime::Clock> clock, Options options)
    : rank_(rank),
      world_size_(grid.world_size),
      units_(std::move(units)),
      control_memory_(std::move(control)),
      slot_memory_(std::move(slots)),
      hosts_(options.hosts(grid.world_size)),
      control_(control_memory_.data(), grid.world_size, units_.size()),
      slots_(slot_memory_.data(), hosts_, hosts_.host_of(rank), layouts_of(units_), options.slots),
      link_(hosts_.num_hosts() > 1
                ? std::make_unique<HostLink>(LinkModel{control_, units_, slots_, hosts_, grid, rank}, std::move(options.layer), clock)
                : nullptr),
      reducer_(control_, rank, grid, layouts_of(units_), slots_, link_.get(), options.order),
      stepper_(names_of(units_), std::move(options.plan), *clock),
      peers_(control_, rank, hosts_, units_, reducer_, stepper_, link_.get(), clock, std::move(options.waits)),
      leases_(control_, rank, grid.world_size, units_, peers_, stepper_, link_.get()),
      reductions_(control_, rank, grid.world_size, units_, peers_, reducer_) {}

ShardedModel::~ShardedModel() {
  if (peers_.forked()) return;
  leases_.drop_all();
  leave();
}

void ShardedModel::leave() {
  if (peers_.forked()) return;
  peers_.leave();
  if (link_) link_->leave();
}

ShardedModel::Memory ShardedModel::memory() const {
  Memory out;
  for (const auto& u : units_) out.arenas += u->layout().arena_bytes(u->grid());
  out.slots = slot_memory_.size();
  out.control = control_memory_.size();
  return out;
}

// ---- parts of a step ---------------------------------------------------------------------------------------------------------------

Result<void> ShardedModel::unshard(std::size_t unit, bool backward) {
  if (units_[unit]->leased()) return {};
  const auto start = stepper_.now();
  SHOAL_OK(leases_.take(unit));
  if (stepping()) stepper_.ran(Op::kUnshard, static_cast<std::int32_t>(unit), backward, start, stepper_.now());
  return {};
}

void ShardedModel::reshard(std::size_t unit, bool backward) {
  auto& u = *units_[unit];
  if (!u.leased()) return;
  const auto start = stepper_.now();
  u.drop_lease();
  if (stepping()) stepper_.ran(Op::kReshard, static_cast<std::int32_t>(unit), backward, start, stepper_.now());
}

Result<void> ShardedModel::publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how) {
  if (!std::exchange(slots_populated_, true))
    slot_memory_.populate_part(hosts_.index_of(rank_), hosts_.ranks(hosts_.host_of(rank_)).size());
  const auto start = stepper_.now();
  SHOAL_OK(reductions_.publish(unit, gradients, how));
  stepper_.ran(Op::kReduceScatter, static_cast<std::int32_t>(unit), true, start, stepper_.now());
  SHOAL_OK(peers_.serve());
  return {};
}

// ---- a step driven by hooks --------------------------------------------------------------------------------------------------------

Result<bool> ShardedModel::enter(bool training) {
  SHOAL_OK(peers_.check());
  const bool stepped = stepping();
  const std::uint64_t step = stepped_version_;
  SHOAL_OK(leases_.enter());
  if (training && !stepping()) {
    stepper_.begin_step();
    stepped_version_ = leases_.version();
  }
  return stepping() != stepped || stepped_version_ != step;
}

Result<void> ShardedModel::forward_begin(std::size_t unit, bool training) {
  SHOAL_OK(peers_.check());
  peers_.at(Doing::kForward, unit);
  SHOAL_OK(unshard(unit));
  if (!training || !stepping()) return {};
  stepper_.passed({false, true, static_cast<std::int32_t>(unit)});
  SHOAL_OK(peers_.serve());
  return {};
}

void ShardedModel::forward_end(std::size_t unit, bool training, bool reshard_now) {
  peers_.at(Doing::kForward, unit);
  if (training && stepping()) stepper_.passed({false, false, static_cast<std::int32_t>(unit)});
  if (reshard_now) reshard(unit);
}

Result<void> ShardedModel::backward_begin(std::size_t unit, std::uint64_t version) {
  SHOAL_OK(peers_.check());
  peers_.at(Doing::kBackward, unit);
  SHOAL_OK(leases_.check_version(unit, version));
  SHOAL_OK(unshard(unit, true));
  stepper_.passed({true, true, static_cast<std::int32_t>(unit)});
  SHOAL_OK(peers_.serve());
  return {};
}

Result<void> ShardedModel::backward_end(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how,
                                        bool reshard_now) {
  SHOAL_OK(peers_.check());
  stepper_.passed({true, false, static_cast<std::int32_t>(unit)});
  if (!gradients.empty()) SHOAL_OK(publish(unit, gradients, how));
  if (reshard_now) reshard(unit, true);
  return {};
}

Result<void> ShardedModel::finish_backward(bool leave) {
  SHOAL_OK(reductions_.end_pass());
  if (leave) {
    for (std::size_t i = 0; i < units_.size(); ++i) reshard(i, true);
    SHOAL_OK(leases_.open_window("the end of backward"));
  }
  peers_.at(Doing::kBetween, 0);
  return {};
}

void ShardedModel::optimizer_begin() {
  peers_.at(Doing::kOptimizer, 0);
  optimizer_began_ = stepper_.now();
}

void ShardedModel::optimizer_end(std::int32_t unit) {
  stepper_.ran(Op::kOptimizerUpdate, unit, false, optimizer_began_, stepper_.now());
  if (unit < 0) peers_.at(Doing::kBetween, 0);
}

Result<void> ShardedModel::commit(std::uint64_t step) {
  control_.rank(rank_).recorded.store(step + 1, std::memory_order_release);  // 0: not protected
  peers_.notify_all();
  const auto missing = [&] {
    for (int r = 0; r < world_size_; ++r) {
      if (!has_recorded(r, step)) return r;
    }
    return -1;
  };
  auto waited = peers_.wait([&] { return missing() < 0; }, {fmt::format("all ranks to record optimizer step {}", step), missing});
  if (!waited && missing() >= 0) return waited;
  return {};
}

bool ShardedModel::has_recorded(int rank, std::uint64_t step) const {
  return control_.rank(rank).recorded.load(std::memory_order_acquire) > step;
}

void ShardedModel::end_step() {
  if (!leases_.window_open()) return;
  stepper_.end_step();
  stepped_version_ = 0;
}

void ShardedModel::reset() {
  leases_.drop_all();
  reductions_.start_over();
}

// ---- serving the other ranks -------------------------------------------------------------------------------------------------------

void ShardedModel::join() {
  control_.rank(rank_).joined.fetch_add(1, std::memory_order_release);
  peers_.notify_all();
}

int ShardedModel::first_behind_join() const {
  const auto mine = control_.rank(rank_).joined.load(std::memory_order_relaxed);
  for (int r = 0; r < world_size_; ++r) {
    if (control_.rank(r).joined.load(std::memory_order_acquire) < mine) return r;
  }
  return -1;
}

Result<ShardedModel::Service> ShardedModel::next_service() {
  Service out;
  const auto due = [&] {
    // This is checked first: once all ranks have joined, a faster one may publish for its next loop, which this call must not answer.
    if (first_behind_join() < 0) return true;
    if (const int unit = reducer_.awaited_unit(); unit >= 0) {
      out = {Service::What::kPublish, static_cast<std::size_t>(unit)};
      return true;
    }
    if (leases_.others_left()) {
      out = {Service::What::kWindow, 0};
      return true;
    }
    return false;
  };
  SHOAL_OK(peers_.wait(due, {"the ranks that still have batches", [this] { return first_behind_join(); }}));
  return out;
}

}  // namespace shoal::fsdp
