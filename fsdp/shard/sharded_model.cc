#include "fsdp/shard/sharded_model.h"

#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include "runtime/core/check.h"

namespace shoal::fsdp {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);      // interval at which a sleeping wait polls for signals
constexpr auto kProof = std::chrono::seconds(1);           // time without any change in all ranks' waits before they count as stuck
constexpr auto kDepartureGrace = std::chrono::seconds(1);  // time from a rank's leave until its process's end is known

std::vector<const Layout*> layouts_of(const ShardedModel::Units& units) {
  std::vector<const Layout*> out;
  for (const auto& u : units) out.push_back(&u->layout());
  return out;
}

std::vector<std::string> names_of(const ShardedModel::Units& units) {
  std::vector<std::string> out;
  for (const auto& u : units) out.push_back(u->name());
  return out;
}

const char* doing_name(Doing d) {
  switch (d) {
    case Doing::kStarting:
      return "has not run a forward yet";
    case Doing::kForward:
      return "is in forward of";
    case Doing::kBackward:
      return "is in backward of";
    case Doing::kBetween:
      return "is between backward and its next forward";
    case Doing::kOptimizer:
      return "is in its optimizer";
    case Doing::kLeft:
      return "has left";
  }
  return "is somewhere";
}

}  // namespace

std::size_t ShardedModel::slot_bytes(const Units& units, Grid grid, int slots) {
  return Reducer::slot_bytes(layouts_of(units), grid, slots);
}

ShardedModel::ShardedModel(int rank, Grid grid, Units units, runtime::Mapping control, runtime::Mapping slots,
                           std::shared_ptr<runtime::Clock> clock, Options options)
    : rank_(rank),
      world_size_(grid.world_size),
      units_(std::move(units)),
      control_memory_(std::move(control)),
      slot_memory_(std::move(slots)),
      options_(std::move(options)),
      clock_(std::move(clock)),
      control_(control_memory_.data()),
      gate_(control_, rank, grid.world_size),
      reducer_(control_, rank, grid, layouts_of(units_), slot_memory_.data(), options_.slots),
      stepper_(names_of(units_), options_.plan, *clock_),
      given_up_(units_.size()) {
  if (options_.communicator) exchange_ = std::make_unique<Exchange>(options_.communicator, control_, rank, grid);
  gathered_.resize(units_.size());
  fingerprint_ = 1;
  for (const auto& u : units_) fingerprint_ = fingerprint_ * 0x100000001b3ULL + u->layout().fingerprint();
  if (fingerprint_ == 0) fingerprint_ = 1;
  control_.rank(rank_).fingerprint.store(fingerprint_, std::memory_order_release);
  control_.membership_page().notify_all();
}

ShardedModel::~ShardedModel() {
  for (const auto& u : units_) u->drop_lease();
  leave();
}

void ShardedModel::leave() {
  if (control_.membership_page().is_gone(static_cast<std::uint32_t>(rank_))) return;  // its actor was killed: peers must see that cause
  control_.rank(rank_).place.store(encode_place({Doing::kLeft, 0, step()}), std::memory_order_release);
  control_.membership_page().notify_all();
}

void ShardedModel::at(Doing doing, std::size_t unit) {
  control_.rank(rank_).place.store(encode_place({doing, static_cast<std::uint16_t>(unit), step()}), std::memory_order_relaxed);
}

// ---- waiting -----------------------------------------------------------------------------------------------------------------------

std::string ShardedModel::describe(int rank) const {
  const Place p = decode_place(control_.rank(rank).place.load(std::memory_order_relaxed));
  std::string out = fmt::format("rank {} {}", rank, doing_name(p.doing));
  if ((p.doing == Doing::kForward || p.doing == Doing::kBackward) && p.unit < units_.size()) {
    out += " unit " + (units_[p.unit]->name().empty() ? std::string("(root)") : units_[p.unit]->name());
  }
  return out + fmt::format(", step {}", p.step);
}

bool ShardedModel::has_left(int rank) const {
  return decode_place(control_.rank(rank).place.load(std::memory_order_acquire)).doing == Doing::kLeft;
}

int ShardedModel::first_lost() const {
  auto& membership_page = const_cast<Control&>(control_).membership_page();
  const int gone = membership_page.first_gone(static_cast<std::uint32_t>(world_size_));
  if (gone < 0) return -1;
  for (int r = gone; r < world_size_; ++r) {
    if (membership_page.is_gone(static_cast<std::uint32_t>(r)) && !has_left(r)) return r;
  }
  return -1;
}

Error ShardedModel::lost(int rank) const {
  const auto& membership_page = const_cast<Control&>(control_).membership_page();
  const auto member = static_cast<std::uint32_t>(rank);
  const bool gone = membership_page.is_gone(member);
  Error e = unavailable(gone ? membership_page.cause(member)
                             : fmt::format("rank {} has left: it ended, raised an error, or dropped the model", rank))
                .with_reason("ActorDied");
  if (gone || has_left(rank)) {
    e = std::move(e).with_hint(
        fmt::format("look at the output of rank {}; if it only had fewer batches than others, train inside shoal.fsdp.join", rank));
  }
  return std::move(e)
      .in(fmt::format("ShardActor rank {}", rank))
      .in(fmt::format("seen by rank {}", rank_))
      .in(fmt::format("step {}", step()));
}

Result<void> ShardedModel::check_fingerprints() {
  if (fingerprints_checked_) return {};
  for (int r = 0; r < world_size_; ++r) {
    if (control_.rank(r).fingerprint.load(std::memory_order_acquire) != fingerprint_) {
      return fail(invalid_argument(fmt::format("ranks {} and {} sharded different models: names, shapes, dtypes or units differ", rank_, r))
                      .with_reason("Diverged")
                      .with_hint("build the same model, with the same fully_shard calls in the same order, on every rank"));
    }
  }
  fingerprints_checked_ = true;
  return {};
}

Result<void> ShardedModel::serve_due(bool& served) {
  SHOAL_TRY(served, reducer_.serve());
  if (served) control_.membership_page().notify_all();
  return {};
}

// True when every rank is in the same wait as before and has checked again since. A stopped rank proves nothing.
bool ShardedModel::all_stuck(std::vector<std::pair<std::uint64_t, std::uint64_t>>& before) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> now;
  bool all = static_cast<int>(before.size()) == world_size_;
  for (int r = 0; r < world_size_; ++r) {
    const auto& words = control_.rank(r);
    const auto wait = words.waiting.load(std::memory_order_acquire), looks = words.looks.load(std::memory_order_acquire);
    now.emplace_back(wait, looks);
    all = all && wait != 0 && wait == before[static_cast<std::size_t>(r)].first && looks > before[static_cast<std::size_t>(r)].second;
  }
  before = std::move(now);
  return all;
}

Result<void> ShardedModel::wait(const std::function<bool()>& done, const Waiting& waiting) {
  struct Told {
    std::atomic<std::uint64_t>& word;
    ~Told() { word.store(0, std::memory_order_release); }
  };
  std::optional<Told> reported;
  const auto began = clock_->now();
  auto look_at = began + kProof;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> waits;  // waits of all ranks at the last check
  auto warn_at = began + options_.warn_after;
  std::optional<runtime::TimePoint> left_since;  // the awaited rank has left since then
  while (true) {
    SHOAL_OK(check_peers());
    if (done()) return {};
    bool served = false;
    SHOAL_OK(serve_due(served));
    if (served) continue;
    auto& membership_page = control_.membership_page();
    const auto due = [&] { return done() || first_lost() >= 0 || (reducer_.num_pending() > 0 && reducer_.missing_publication() < 0); };
    if (membership_page.wait_until(due, kLook, options_.spins) == runtime::MembershipPage::WaitResult::kDone) continue;
    const auto& interrupted = interrupt_by_ ? interrupt_by_ : options_.interrupted;
    if (interrupted && interrupted()) return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
    const auto now = clock_->now();
    if (!reported) {
      control_.rank(rank_).stuck.store(0, std::memory_order_release);
      control_.rank(rank_).waiting.store(++waits_, std::memory_order_release);
      reported.emplace(control_.rank(rank_).waiting);
    }
    control_.rank(rank_).looks.fetch_add(1, std::memory_order_release);
    // All ranks wait and no wait has ended since the last check. Each serves what is due, so none ever will.
    if (now >= look_at) {
      look_at = now + kProof;
      const bool told_so = control_.rank(rank_).stuck.exchange(0, std::memory_order_acq_rel) != 0;
      if (told_so || (all_stuck(waits) && !done())) {
        for (int r = 0; r < world_size_ && !told_so; ++r) {
          if (r != rank_) control_.rank(r).stuck.store(1, std::memory_order_release);
        }
        control_.membership_page().notify_all();
        std::string others;
        for (int r = 0; r < world_size_; ++r) {
          if (r != rank_) others += (others.empty() ? "" : "; ") + describe(r);
        }
        const int missing = waiting.missing();
        return fail(invalid_argument(fmt::format("all ranks wait for each other: rank {} for {}{}; {}", rank_, waiting.for_what,
                                                 missing < 0 ? "" : fmt::format(" of rank {}", missing), others))
                        .with_reason("Diverged")
                        .with_hint("every rank must run the same forward and backward passes and optimizer steps in the same order")
                        .in(fmt::format("step {}", step())));
      }
    }
    // A rank that has left does nothing more. The cause of its process's end may follow shortly.
    if (const int missing = waiting.missing(); missing >= 0 && has_left(missing) && waiting.missing() == missing && !done()) {
      if (!left_since) left_since = now;
      if (membership_page.is_gone(static_cast<std::uint32_t>(missing)) || now - *left_since > kDepartureGrace) {
        return fail(lost(missing).in("waiting for " + waiting.for_what));
      }
    }
    if (now >= warn_at && options_.warn) {
      const int missing = waiting.missing();
      options_.warn(fmt::format("rank {} waits for {} since {} s: {}", rank_, waiting.for_what,
                                std::chrono::duration_cast<std::chrono::seconds>(now - began).count(),
                                missing < 0 ? "no rank in particular" : describe(missing)));
      warn_at = now + 6 * options_.warn_after;
    }
    if (now - began > options_.timeout) {
      const int missing = waiting.missing();
      return fail(deadline_exceeded(fmt::format("rank {} waited {} s for {}: {}", rank_,
                                                std::chrono::duration_cast<std::chrono::seconds>(now - began).count(), waiting.for_what,
                                                missing < 0 ? "no rank in particular" : describe(missing)))
                      .with_reason("Late")
                      .with_hint("a rank ran fewer batches, skipped a module, or is stuck outside the engine"));
    }
  }
}

// ---- leases ------------------------------------------------------------------------------------------------------------------------

Result<void> ShardedModel::enter_gate() {
  // A failed wait for a window (signal, timeout) left the gate in kLeaving: finish opening it first.
  if (gate_.phase() == VersionGate::Phase::kLeaving) SHOAL_OK(open_window("a window that was waited for before"));
  if (window_open()) {
    for (const auto& u : units_) u->publish_own();
  }
  if (gate_.enter()) {
    stepping_ = false;
    if (exchange_) exchange_->follow_gate();
    control_.membership_page().notify_all();
  }
  return {};
}

Result<void> ShardedModel::enter(bool training) {
  SHOAL_OK(check_peers());
  SHOAL_OK(enter_gate());
  if (training && !stepping_) {
    stepper_.begin_step();
    stepping_ = true;
  }
  return {};
}

Result<void> ShardedModel::check_given_up(std::size_t unit) const {
  if (gate_.phase() != VersionGate::Phase::kReading || given_up_[unit] == 0 || given_up_[unit] != gate_.version()) return {};
  return fail(invalid_argument(fmt::format("unit {} is read again in a step whose backward has already updated it",
                                           units_[unit]->name().empty() ? "(root)" : units_[unit]->name()))
                  .with_reason("StaleBackward")
                  .with_hint("with the optimizer in backward each unit's last backward of a step runs once: before one that another "
                             "follows, call set_is_last_backward(False)")
                  .in(fmt::format("rank {}", rank_))
                  .in(fmt::format("step {}", step())));
}

ShardedModel::Memory ShardedModel::memory() const {
  Memory out;
  for (const auto& u : units_) out.arenas += u->layout().arena_bytes(u->grid());
  out.slots = slot_memory_.size();
  out.control = control_memory_.size();
  return out;
}

Result<void> ShardedModel::unshard(std::size_t unit, bool backward) {
  auto& u = *units_[unit];
  if (u.leased()) return {};
  const auto start = stepper_.now();
  SHOAL_OK(enter_gate());
  SHOAL_OK(check_given_up(unit));
  if (!gate_.readable()) {
    SHOAL_OK(wait([this] { return gate_.readable(); },
                  {fmt::format("the parameters of step {} (unit {})", step(), u.name().empty() ? "(root)" : u.name()),
                   [this] { return gate_.missing_to_read(); }}));
  }
  if (exchange_ && gathered_[unit] != gate_.version()) {
    SHOAL_OK(exchange_->gather(u, unit, fingerprint_, step()));
    gathered_[unit] = gate_.version();
  }
  SHOAL_OK(check_fingerprints());
  u.take_lease(step());
  if (stepping_) stepper_.ran(Op::kUnshard, static_cast<std::int32_t>(unit), backward, start, stepper_.now());
  return {};
}

void ShardedModel::reshard(std::size_t unit, bool backward) {
  auto& u = *units_[unit];
  if (!u.leased()) return;
  const auto start = stepper_.now();
  u.drop_lease();
  if (stepping_) stepper_.ran(Op::kReshard, static_cast<std::int32_t>(unit), backward, start, stepper_.now());
}

// Runs the plan's nodes at this boundary. Gradients exist only for the boundary's unit. The plan is from the step before, so the caller
// decides whether the unit is resharded here.
Result<void> ShardedModel::follow(const std::vector<std::int32_t>& nodes, std::size_t current, bool& published,
                                  std::span<const Reducer::Gradient> gradients, Reducer::How how, bool may_reshard) {
  for (const auto id : nodes) {
    const Node node = stepper_.plan()->graph().nodes()[static_cast<std::size_t>(id)];
    const auto unit = static_cast<std::size_t>(node.unit);
    switch (node.op) {
      case Op::kUnshard:
        SHOAL_OK(unshard(unit, node.backward));
        break;
      case Op::kReshard:
        if (unit == current && may_reshard) reshard(unit, node.backward);
        break;
      case Op::kReduceScatter:
        if (unit == current && !published && !gradients.empty()) {
          SHOAL_OK(publish(unit, gradients, how));
          published = true;
        }
        break;
      default:
        break;
    }
  }
  return {};
}

Result<void> ShardedModel::forward_begin(std::size_t unit, bool training) {
  SHOAL_OK(check_peers());
  at(Doing::kForward, unit);
  if (!training || !stepping_) return unshard(unit);
  // Its own lease comes first: the plan's prefetches serve later units.
  SHOAL_OK(unshard(unit));
  bool published = false;
  SHOAL_OK(follow(stepper_.boundary({false, true, static_cast<std::int32_t>(unit)}), unit, published, {}, {}, false));
  bool served = false;
  return serve_due(served);
}

void ShardedModel::forward_end(std::size_t unit, bool training, bool reshard_now) {
  at(Doing::kForward, unit);
  bool published = false;
  if (training && stepping_) {
    const auto followed = follow(stepper_.boundary({false, false, static_cast<std::int32_t>(unit)}), unit, published, {}, {}, reshard_now);
    (void)followed;  // a dead peer is reported at the next begin
  }
  if (reshard_now) reshard(unit);
}

Result<void> ShardedModel::check_version(std::size_t unit, std::uint64_t version) const {
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
                  .in(fmt::format("step {}", step())));
}

Result<void> ShardedModel::backward_begin(std::size_t unit, std::uint64_t version) {
  SHOAL_OK(check_peers());
  at(Doing::kBackward, unit);
  SHOAL_OK(check_version(unit, version));
  SHOAL_OK(unshard(unit, true));
  bool published = false;
  SHOAL_OK(follow(stepper_.boundary({true, true, static_cast<std::int32_t>(unit)}), unit, published, {}, {}, false));
  bool served = false;
  return serve_due(served);
}

Result<void> ShardedModel::publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how) {
  const auto start = stepper_.now();
  if (!reducer_.has_slot()) {
    SHOAL_OK(
        wait([this] { return reducer_.has_slot(); }, {fmt::format("a gradient slot (reduce_scatter of unit {}, step {})",
                                                                  units_[unit]->name().empty() ? "(root)" : units_[unit]->name(), step()),
                                                      [this] { return reducer_.missing_slot(); }}));
  }
  reducer_.publish(static_cast<std::uint32_t>(unit), gradients, how);
  if (exchange_) SHOAL_OK(exchange_->gradients(*units_[unit], reducer_, how, step()));
  control_.membership_page().notify_all();
  published_any_ = true;
  stepper_.ran(Op::kReduceScatter, static_cast<std::int32_t>(unit), true, start, stepper_.now());
  bool served = false;
  return serve_due(served);
}

Result<double> ShardedModel::sum_over_ranks(double part) {
  if (exchange_) {
    return fail(unimplemented("ranks that share no memory cannot clip by the global norm in a step graph")
                    .with_hint("clip_grad_norm_ between backward and optimizer.step() works over any ranks"));
  }
  // Two alternating places suffice: a rank contributes to a sum only after it has read the previous one.
  const std::size_t place = num_sums_++ % 2;
  auto& mine = control_.rank(rank_);
  mine.parts[place].store(std::bit_cast<std::uint64_t>(part), std::memory_order_relaxed);
  mine.summed.store(num_sums_, std::memory_order_release);
  control_.membership_page().notify_all();
  const auto missing = [this] {
    for (int r = 0; r < world_size_; ++r) {
      if (control_.rank(r).summed.load(std::memory_order_acquire) < num_sums_) return r;
    }
    return -1;
  };
  // A rank that has started over may have written parts of later sums.
  SHOAL_OK(wait([&] { return missing() < 0 || reducer_.ahead() >= 0; }, {fmt::format("a sum over ranks (step {})", step()), missing}));
  double out = 0;
  for (int r = 0; r < world_size_; ++r) out += std::bit_cast<double>(control_.rank(r).parts[place].load(std::memory_order_relaxed));
  if (const int rank = reducer_.ahead(); rank >= 0) return fail(started_over(rank));
  return out;
}

Result<void> ShardedModel::backward_end(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how,
                                        bool reshard_now) {
  SHOAL_OK(check_peers());
  bool published = false;
  SHOAL_OK(follow(stepper_.boundary({true, false, static_cast<std::int32_t>(unit)}), unit, published, gradients, how, reshard_now));
  if (!published && !gradients.empty()) SHOAL_OK(publish(unit, gradients, how));
  if (reshard_now) reshard(unit, true);
  return {};
}

Result<void> ShardedModel::await_reductions() {
  SHOAL_OK(wait([this] { return reducer_.num_pending() == 0; },
                {fmt::format("the gradients of step {}", step()), [this] { return reducer_.missing_publication(); }}));
  if (reducer_.overtaken_by() < 0) return {};
  return fail(started_over(reducer_.overtaken_by()));
}

Error ShardedModel::started_over(int rank) const {
  return invalid_argument(fmt::format("rank {} has started step {} over, rank {} has not", rank, step(), rank_))
      .with_reason("Diverged")
      .with_hint("one rank's backward raised an exception: call reset_iter_state() on every rank, and repeat the step");
}

Result<void> ShardedModel::finish_backward(bool leave) {
  if (published_any_) {
    SHOAL_OK(await_reductions());
    published_any_ = false;
  }
  if (leave) {
    for (std::size_t i = 0; i < units_.size(); ++i) reshard(i, true);
    SHOAL_OK(open_window("the end of backward"));
  }
  at(Doing::kBetween, 0);
  return {};
}

// ---- writing -----------------------------------------------------------------------------------------------------------------------

Result<void> ShardedModel::open_window(const std::string& caller) {
  if (window_open()) return {};
  for (const auto& u : units_) u->drop_lease();
  if (gate_.leave()) {
    if (exchange_) exchange_->follow_gate();
    control_.membership_page().notify_all();
  }
  if (!gate_.writable()) {
    SHOAL_OK(
        wait([this] { return gate_.writable(); }, {fmt::format("all ranks to have read the parameters of step {} ({})", step(), caller),
                                                   [this] { return gate_.missing_to_write(); }}));
  }
  gate_.open();
  return {};
}

// ---- serving the others -----------------------------------------------------------------------------------------------------------

Result<void> ShardedModel::join() {
  if (exchange_) {
    return fail(unimplemented("ranks that share no memory cannot serve each other after their last batch")
                    .with_hint("give every rank the same number of batches"));
  }
  control_.rank(rank_).joined.fetch_add(1, std::memory_order_release);
  control_.membership_page().notify_all();
  return {};
}

int ShardedModel::first_behind_join() const {
  const auto mine = control_.rank(rank_).joined.load(std::memory_order_relaxed);
  for (int r = 0; r < world_size_; ++r) {
    if (control_.rank(r).joined.load(std::memory_order_acquire) < mine) return r;
  }
  return -1;
}

Result<ShardedModel::Asked> ShardedModel::asked() {
  Asked out;
  const auto look = [&] {
    // Checked first: a rank that is done with these batches may already publish for the next ones.
    if (first_behind_join() < 0) return true;
    if (const int unit = reducer_.awaited_unit(); unit >= 0) {
      out = {Asked::What::kPublish, static_cast<std::size_t>(unit)};
      return true;
    }
    for (int r = 0; r < world_size_; ++r) {
      // Rank r has left the version that this rank reads.
      if (gate_.phase() == VersionGate::Phase::kReading && control_.rank(r).done.load(std::memory_order_acquire) >= gate_.version()) {
        out = {Asked::What::kWindow, 0};
        return true;
      }
    }
    return false;
  };
  SHOAL_OK(wait(look, {"the ranks that still have batches", [this] { return first_behind_join(); }}));
  return out;
}

void ShardedModel::optimizer_begin() {
  at(Doing::kOptimizer, 0);
  optimizer_began_ = stepper_.now();
}

void ShardedModel::optimizer_end(std::int32_t unit) {
  stepper_.ran(Op::kOptimizerUpdate, unit, false, optimizer_began_, stepper_.now());
  if (unit < 0) at(Doing::kBetween, 0);
}

void ShardedModel::end_step() {
  if (!window_open()) return;
  stepper_.end_step();
  stepping_ = false;
}

void ShardedModel::reset() {
  for (const auto& u : units_) u->drop_lease();
  published_any_ = false;
  control_.rank(rank_).stuck.store(0, std::memory_order_release);
  reducer_.start_over();
  num_sums_ = reducer_.first_number();
  if (exchange_) exchange_->follow_reducer();
  control_.membership_page().notify_all();
}

}  // namespace shoal::fsdp
