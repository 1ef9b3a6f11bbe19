#include "fsdp/shard/leases.h"

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

std::uint64_t fingerprint_of(const Units& units) {
  std::uint64_t out = 1;
  for (const auto& u : units) out = out * 0x100000001b3ULL + u->layout().fingerprint();
  return out == 0 ? 1 : out;
}

}  // namespace

Leases::Leases(Control& control, int rank, int world_size, const Units& units, Peers& peers, const Stepper& stepper, HostLink* link)
    : control_(control),
      rank_(rank),
      world_size_(world_size),
      units_(units),
      peers_(peers),
      stepper_(stepper),
      link_(link),
      fingerprint_(fingerprint_of(units)),
      gate_(control, rank, world_size),
      given_up_(units.size()) {
  control_.rank(rank_).fingerprint.store(fingerprint_, std::memory_order_release);
  peers_.notify_all();
}

Result<void> Leases::check_models() {
  if (models_checked_) return {};
  for (int r = 0; r < world_size_; ++r) {
    if (control_.rank(r).fingerprint.load(std::memory_order_acquire) != fingerprint_) {
      return fail(invalid_argument(fmt::format("ranks {} and {} sharded different models: names, shapes, dtypes or units differ", rank_, r))
                      .with_reason("Diverged")
                      .with_hint("build the same model, with the same fully_shard calls in the same order, on every rank"));
    }
  }
  models_checked_ = true;
  return {};
}

Result<void> Leases::enter() {
  SHOAL_OK(peers_.check_process());
  // An earlier wait for a window failed (signal, timeout) and left the gate in kLeaving: that window is opened first.
  if (gate_.phase() == VersionGate::Phase::kLeaving) SHOAL_OK(open_window("a window that was waited for before"));
  if (window_open()) {
    for (const auto& u : units_) u->publish_own();
  }
  if (gate_.enter()) {
    peers_.notify_all();
    if (link_ != nullptr) link_->send_rows(gate_.version(), order_of_use());
  }
  return {};
}

Result<void> Leases::take(std::size_t unit) {
  auto& u = *units_[unit];
  SHOAL_OK(enter());
  SHOAL_OK(check_given_up(unit));
  if (!gate_.readable()) {
    SHOAL_OK(peers_.wait(
        [this] { return gate_.readable(); },
        {fmt::format("the parameters of step {} (unit {})", peers_.step_number(), u.label()), [this] { return gate_.missing_to_read(); }}));
  }
  SHOAL_OK(check_models());
  if (link_ != nullptr && link_->missing_rows(unit, gate_.version()) >= 0) {
    SHOAL_OK(peers_.wait([&] { return link_->missing_rows(unit, gate_.version()) < 0; },
                         {fmt::format("the rows of unit {} from other hosts (step {})", u.label(), peers_.step_number()),
                          [&] { return link_->missing_rows(unit, gate_.version()); }, /*for_link=*/true}));
  }
  u.take_lease(peers_.step());
  return {};
}

void Leases::drop_all() {
  for (const auto& u : units_) u->drop_lease();
}

Result<void> Leases::open_window(const std::string& caller) {
  SHOAL_OK(peers_.check_process());
  if (window_open()) return {};
  drop_all();
  if (gate_.leave()) peers_.notify_all();
  if (!gate_.writable()) {
    SHOAL_OK(peers_.wait([this] { return gate_.writable(); },
                         {fmt::format("all ranks to have read the parameters of step {} ({})", peers_.step_number(), caller),
                          [this] { return gate_.missing_to_write(); }}));
  }
  if (link_ != nullptr && !link_->rows_sent()) {
    SHOAL_OK(peers_.wait([this] { return link_->rows_sent(); },
                         {fmt::format("this rank's rows of step {} to be sent to other hosts ({})", peers_.step_number(), caller),
                          [] { return -1; }, /*for_link=*/true}));
  }
  gate_.open();
  return {};
}

std::vector<std::uint32_t> Leases::order_of_use() const {
  std::vector<std::uint32_t> out;
  std::vector<bool> listed(units_.size());
  const auto append = [&](std::size_t unit) {
    if (!listed[unit]) out.push_back(static_cast<std::uint32_t>(unit));
    listed[unit] = true;
  };
  if (const Plan* plan = stepper_.plan()) {
    for (const Node& node : plan->graph().nodes()) {
      if (node.op == Op::kUnshard && node.unit >= 0) append(static_cast<std::size_t>(node.unit));
    }
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) append(unit);
  return out;
}

Result<void> Leases::check_given_up(std::size_t unit) const {
  if (!given_up(unit)) return {};
  return fail(invalid_argument(fmt::format("unit {} is read again in a step whose backward has already updated it", units_[unit]->label()))
                  .with_reason("StaleBackward")
                  .with_hint("with the optimizer in backward each unit's last backward of a step runs once: before one that another "
                             "follows, call set_is_last_backward(False)")
                  .in(fmt::format("rank {}", rank_))
                  .in(fmt::format("step {}", peers_.step_number())));
}

Result<void> Leases::check_version(std::size_t unit, std::uint64_t version) const {
  SHOAL_OK(check_given_up(unit));
  if (gate_.phase() == VersionGate::Phase::kReading && gate_.version() == version) return {};
  const auto& name = units_[unit]->name();
  const std::string why = gate_.version() == version ? std::string("a write to them, or the backward pass that ended the step, preceded it")
                                                     : fmt::format("version {} is current: they were written since", gate_.version());
  return fail(invalid_argument(fmt::format("backward of {} needs parameters of version {}, but {}",
                                           name.empty() ? std::string("the root module") : "module '" + name + "'", version, why))
                  .with_reason("StaleBackward")
                  .with_hint("for a second backward over one graph call the first as backward(retain_graph=True); after a write or an "
                             "optimizer's step call forward again")
                  .in(fmt::format("rank {}", rank_))
                  .in(fmt::format("step {}", peers_.step_number())));
}

}  // namespace shoal::fsdp
