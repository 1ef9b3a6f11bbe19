#include "fsdp/shard/peers.h"

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);  // interval at which a sleeping wait polls for signals
constexpr auto kProof = std::chrono::seconds(1);               // time without any change in all ranks' waits before they count as stuck
constexpr auto kDepartureGrace = std::chrono::seconds(1);      // time from a rank's leave until its process's end is known

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

auto seconds_between(runtime::TimePoint from, runtime::TimePoint to) {
  return std::chrono::duration_cast<std::chrono::seconds>(to - from).count();
}

// Reports a wait to its observer, if there is one.
class ObservedWait {
 public:
  explicit ObservedWait(const std::function<void(bool)>& waits) : waits_(waits) {
    if (waits_) waits_(true);
  }
  ~ObservedWait() {
    if (waits_) waits_(false);
  }
  ObservedWait(const ObservedWait&) = delete;
  ObservedWait& operator=(const ObservedWait&) = delete;

 private:
  const std::function<void(bool)>& waits_;
};

// States in this rank's words that it waits, until the wait ends.
class WaitingWord {
 public:
  WaitingWord(Control::RankWords& words, HostLink* link) : words_(words), link_(link) {}
  WaitingWord(const WaitingWord&) = delete;
  ~WaitingWord() { clear(); }
  // States that this rank waits for another rank's program no more.
  void clear() {
    if (!set_) return;
    words_.waiting.store(0, std::memory_order_release);
    set_ = false;
    if (link_ != nullptr) link_->update();
  }
  // Records a fruitless check of this wait. The first one counts the wait in `num_waits`.
  void count_check(std::uint64_t& num_waits) {
    if (!set_) {
      words_.stuck.store(0, std::memory_order_release);
      words_.waiting.store(++num_waits, std::memory_order_release);
      set_ = true;
    }
    words_.checks.fetch_add(1, std::memory_order_release);
    if (link_ != nullptr) link_->update();
  }

 private:
  Control::RankWords& words_;
  HostLink* const link_;
  bool set_ = false;
};

}  // namespace

Peers::Peers(Control& control, int rank, const Hosts& hosts, const Units& units, Reducer& reducer, const Stepper& stepper, HostLink* link,
             std::shared_ptr<runtime::Clock> clock, Options options)
    : control_(control),
      rank_(rank),
      hosts_(hosts),
      units_(units),
      reducer_(reducer),
      stepper_(stepper),
      link_(link),
      clock_(std::move(clock)),
      options_(std::move(options)) {}

Result<void> Peers::check_process() const {
  if (!forked()) return {};
  return fail(unavailable("this process was forked from one that is a rank of the model")
                  .with_reason("Forked")
                  .with_hint("use the model in the parent; a child may have copies of its values, such as those of state_dict()"));
}

Result<void> Peers::check() const {
  SHOAL_OK(check_process());
  return first_lost() < 0 ? Result<void>() : fail(lost(first_lost()));
}

void Peers::leave() {
  // If this rank is marked as gone, its actor was killed. Peers have to get that cause, so nothing is stored here.
  if (control_.membership_page().is_gone(static_cast<std::uint32_t>(rank_))) return;
  control_.rank(rank_).place.store(encode_place({Doing::kLeft, 0, step_number()}), std::memory_order_release);
  notify_all();
}

void Peers::at(Doing doing, std::size_t unit) {
  if (forked()) return;
  control_.rank(rank_).place.store(encode_place({doing, static_cast<std::uint16_t>(unit), step_number()}), std::memory_order_relaxed);
}

std::uint32_t Peers::step_number() const {
  const auto recorded = ended_steps_ ? ended_steps_() : 0;
  return recorded > 0 ? static_cast<std::uint32_t>(recorded) + 1 : step() + 1;
}

Result<bool> Peers::serve() {
  SHOAL_TRY(const bool served, reducer_.serve());
  if (served) notify_all();
  return served;
}

// ---- the other ranks ---------------------------------------------------------------------------------------------------------------

std::string Peers::describe(int rank) const {
  const Place p = decode_place(control_.rank(rank).place.load(std::memory_order_relaxed));
  std::string out = fmt::format("rank {} {}", rank, doing_name(p.doing));
  if ((p.doing == Doing::kForward || p.doing == Doing::kBackward) && p.unit < units_.size()) {
    out += " unit " + units_[p.unit]->label();
  }
  return out + fmt::format(", step {}", p.step);
}

bool Peers::has_left(int rank) const {
  return decode_place(control_.rank(rank).place.load(std::memory_order_acquire)).doing == Doing::kLeft;
}

int Peers::reporter_of(int rank) const { return hosts_.same_host(rank, rank_) ? rank : hosts_.partner(rank, hosts_.host_of(rank_)); }

int Peers::first_lost() const {
  const auto& membership_page = control_.membership_page();
  const int gone = membership_page.first_gone(static_cast<std::uint32_t>(hosts_.world_size()));
  if (gone < 0) return -1;
  if (link_ != nullptr) link_->wake();  // the link reports the end to other hosts
  for (int r = gone; r < hosts_.world_size(); ++r) {
    if (membership_page.is_gone(static_cast<std::uint32_t>(r)) && !has_left(r)) return r;
  }
  return -1;
}

Error Peers::lost(int rank) const {
  const auto& membership_page = control_.membership_page();
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
      .in(fmt::format("step {}", step_number()));
}

// ---- waiting -----------------------------------------------------------------------------------------------------------------------

Result<void> Peers::wait(const std::function<bool()>& ready, const Waiting& waiting) {
  const auto began = clock_->now();
  Watch watch{waiting, ready, began, began + kProof, began + options_.warn_after};
  WaitingWord word(control_.rank(rank_), link_);
  std::optional<ObservedWait> observed;
  const auto due = [&] { return ready() || first_lost() >= 0 || reducer_.can_serve(); };
  while (true) {
    SHOAL_OK(check());
    if (ready()) return {};
    if (!observed) observed.emplace(waits_);
    SHOAL_TRY(const bool served, serve());
    if (served) continue;
    if (control_.membership_page().wait_until(due, kPollInterval, options_.spins) == runtime::MembershipPage::WaitResult::kReady) continue;
    const auto& interrupted = interrupt_by_ ? interrupt_by_ : options_.interrupted;
    if (interrupted && interrupted()) return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
    const auto now = clock_->now();
    if (waiting.for_link || reducer_.waits_for_link()) {
      word.clear();
      link_->wake();  // the link's thread may sleep although another rank of this host has stored a word that it needs
    } else {
      word.count_check(num_waits_);
    }
    SHOAL_OK(check_stuck(watch, now));
    SHOAL_OK(check_left(watch, now));
    SHOAL_OK(check_time(watch, now));
  }
}

// True when every rank is in the same wait as before and has checked again since. A rank that is stopped does not check: it proves nothing.
bool Peers::all_stuck(Watch& watch) const {
  auto& before = watch.waits;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> now;
  bool all = static_cast<int>(before.size()) == hosts_.world_size();
  for (int r = 0; r < hosts_.world_size(); ++r) {
    const auto& words = control_.rank(r);
    const auto wait = words.waiting.load(std::memory_order_acquire), checks = words.checks.load(std::memory_order_acquire);
    now.emplace_back(wait, checks);
    all = all && wait != 0 && wait == before[static_cast<std::size_t>(r)].first && checks > before[static_cast<std::size_t>(r)].second;
  }
  before = std::move(now);
  return all;
}

// Every kProof: if all ranks wait, and no wait has ended since the last check, none ever will. Waits serve due reductions, so no
// reduction is left that could end one.
Result<void> Peers::check_stuck(Watch& watch, runtime::TimePoint now) {
  if (now < watch.check_at) return {};
  watch.check_at = now + kProof;
  const bool proven = control_.rank(rank_).stuck.exchange(0, std::memory_order_acq_rel) != 0;  // proven by another rank
  if (!proven && (!all_stuck(watch) || watch.ready())) return {};
  std::string others;
  for (int r = 0; r < hosts_.world_size(); ++r) {
    if (r == rank_) continue;
    if (!proven) control_.rank(r).stuck.store(1, std::memory_order_release);
    others += (others.empty() ? "" : "; ") + describe(r);
  }
  if (link_ != nullptr && !proven) link_->report_stuck();
  notify_all();
  const int missing = watch.waiting.missing();
  return fail(invalid_argument(fmt::format("all ranks wait for each other: rank {} for {}{}; {}", rank_, watch.waiting.for_what,
                                           missing < 0 ? "" : fmt::format(" of rank {}", missing), others))
                  .with_reason("Diverged")
                  .with_hint("every rank must run the same forward and backward passes and optimizer steps in the same order")
                  .in(fmt::format("step {}", step_number())));
}

// Fails if the missing rank, or the rank that reports for it, has left: that rank does nothing more. For kDepartureGrace the check still
// succeeds, so that a report of the process's end can name the cause.
Result<void> Peers::check_left(Watch& watch, runtime::TimePoint now) const {
  int missing = watch.waiting.missing();
  if (missing < 0) return {};
  const int reporter = reporter_of(missing);
  const bool unreported = reporter != missing && has_left(reporter) && control_.rank(reporter).linked.load(std::memory_order_acquire) == 0;
  if (!has_left(missing) && !unreported) return {};
  if (watch.waiting.missing() != missing || watch.ready()) return {};
  if (!has_left(missing)) missing = reporter;
  if (!watch.left_since) watch.left_since = now;
  const bool ended = control_.membership_page().is_gone(static_cast<std::uint32_t>(missing));
  if (!ended && now - *watch.left_since <= kDepartureGrace) return {};
  return fail(lost(missing).in("waiting for " + watch.waiting.for_what));
}

Result<void> Peers::check_time(Watch& watch, runtime::TimePoint now) const {
  const auto missing = [&] {
    const int rank = watch.waiting.missing();
    return rank < 0 ? std::string("no rank in particular") : describe(rank);
  };
  if (now >= watch.warn_at && options_.warn) {
    options_.warn(
        fmt::format("rank {} waits for {} since {} s: {}", rank_, watch.waiting.for_what, seconds_between(watch.began, now), missing()));
    watch.warn_at = now + 6 * options_.warn_after;
  }
  if (now - watch.began <= options_.timeout) return {};
  return fail(deadline_exceeded(fmt::format("rank {} waited {} s for {}: {}", rank_, seconds_between(watch.began, now),
                                            watch.waiting.for_what, missing()))
                  .with_reason("Late")
                  .with_hint("a rank ran fewer batches, skipped a module, or is stuck outside the engine"));
}

}  // namespace shoal::fsdp
