#include "runtime/net/socket/budget.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace shoal::runtime {

namespace {
// Parts of the free memory, and of the peer's free share, that one connection's answers may take.
constexpr std::uint64_t kUnsentDivisor = 8, kPeerUnsentDivisor = 2;
}  // namespace

std::size_t descriptor_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 1024;
}

Budget::Budget(Clock& clock, Options options) : clock_(clock), options_(options) {}

Result<std::unique_ptr<Budget::Account>> Budget::admit(const std::string& peer) {
  const std::size_t most = std::min(options_.max_connections, descriptor_limit() / 2);
  const auto known = peers_.find(peer);
  const std::size_t of_peer = known == peers_.end() ? 0 : known->second.connections;
  if (connections_ >= most || of_peer >= std::max<std::size_t>(1, most / options_.peer_divisor)) {
    return fail(resource_exhausted(peer + " has " + std::to_string(of_peer) + " connections, and all peers have " +
                                   std::to_string(connections_) + " of at most " + std::to_string(most))
                    .with_reason("TooManyConnections"));
  }
  Account::Use& use = peers_[peer];
  ++use.connections;
  ++connections_;
  return std::unique_ptr<Account>(new Account(shared_from_this(), next_number_++, peer, use, true));
}

std::unique_ptr<Budget::Account> Budget::outgoing() {
  return std::unique_ptr<Account>(new Account(shared_from_this(), next_number_++, "", outgoing_, false));
}

// ---- messages that arrive

Budget::Room Budget::room_for(const Account& account, std::uint64_t bytes) const {
  const auto within = [bytes](std::uint64_t used, std::uint64_t most) { return used == 0 || used + bytes <= most; };
  if (account.accepted_ && !within(account.use_->arriving, options_.max_arriving_bytes / options_.peer_divisor)) return Room::kPeerHasNone;
  return within(arriving_, options_.max_arriving_bytes) ? Room::kFree : Room::kNone;
}

void Budget::grant(Account& account, std::uint64_t bytes) {
  account.arriving_ += bytes;
  arriving_ += bytes;
  account.use_->arriving += bytes;
  account.arrival_.is_fresh = true;
  account.arrival_.is_complete = false;
  account.arrival_.due.reset();
  account.arrival_.begun_bytes = account.arrival_.seen_bytes = account.owner_->received_bytes();
  arrivals_[account.number_] = &account;
}

bool Budget::Account::take(std::uint64_t bytes) {
  if (left_ || arriving_ >= bytes) {
    arrival_.is_unused = false;
    return true;
  }
  if (urgent_) {
    budget_->stop_waiting(*this);
    budget_->grant(*this, bytes);
    return true;
  }
  if (paused_) return false;
  // Nothing overtakes: a large message would wait forever while small ones take the room that it needs.
  const bool others_first = budget_->first_waits_for_all_ || use_->waiting > 0;
  const Room room = budget_->room_for(*this, bytes);
  if (!others_first && room == Room::kFree) {
    budget_->grant(*this, bytes);
    return true;
  }
  budget_->first_waits_for_all_ |= !others_first && room == Room::kNone;
  budget_->wait(*this, bytes);
  return false;
}

void Budget::Account::give_all_back() {
  budget_->arriving_ -= arriving_;
  use_->arriving -= arriving_;
  count_arrived();
  arriving_ = 0;
  budget_->arrivals_.erase(number_);
  budget_->grant_waiting();
}

void Budget::Account::count_arrived() {
  const std::uint64_t received = owner_->received_bytes();
  use_->arrived += received - std::exchange(arrival_.seen_bytes, received);
}

void Budget::wait(Account& account, std::uint64_t bytes) {
  account.wanted_ = bytes;
  if (std::exchange(account.waiting_, true)) return;
  account.waiting_since_ = clock_.now();
  account.place_ = waiting_.insert(waiting_.end(), &account);
  ++account.use_->waiting;
  watch();
}

void Budget::stop_waiting(Account& account) {
  if (!std::exchange(account.waiting_, false)) return;
  waiting_.erase(account.place_);
  --account.use_->waiting;
  grant_waiting();
}

// Grants memory in the order of the messages. A message for which all peers together leave no room stops all messages behind it. A message
// beyond its peer's share stops only messages of this peer.
void Budget::grant_waiting() {
  first_waits_for_all_ = false;
  ++round_;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Account& account = **it;
    const Room room = account.use_->full_at == round_ ? Room::kPeerHasNone : room_for(account, account.wanted_);
    if (room == Room::kNone) {
      first_waits_for_all_ = true;
      return;
    }
    if (room == Room::kPeerHasNone) {
      account.use_->full_at = round_;
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    account.waiting_ = false;
    --account.use_->waiting;
    grant(account, account.wanted_);
    account.arrival_.is_unused = true;
    account.owner_->on_room();
  }
  if (waiting_.empty()) progress_ = {};
}

// While messages wait, time is divided into periods of at least the patience. Each begins here.
void Budget::begin_period() {
  period_began_ = clock_.now();
  for (const auto& [number, account] : arrivals_) account->count_arrived();
  for (const auto& [number, account] : arrivals_) {
    account->use_->seen_arrived = account->use_->arrived;
    if (!std::exchange(account->arrival_.is_fresh, false)) continue;
    account->arrival_.watched_since = period_began_;
    account->arrival_.watched_arrived = account->use_->arrived;
  }
}

void Budget::watch() {
  if (waiting_.size() != 1) return;
  if (period_began_ + options_.patience <= clock_.now()) {  // bytes that arrived before any message waited do not count
    for (const auto& [number, account] : arrivals_) {
      account->arrival_.is_fresh = true;
      account->arrival_.due.reset();
    }
    begin_period();
  }
  progress_ = clock_.after(options_.patience, [this] { check_progress(); });
}

void Budget::check_progress() {
  for (const auto& [number, account] : arrivals_) account->count_arrived();
  const std::vector<Account*> stand_still = stalled(), slow = too_slow();
  begin_period();
  for (Account* account : stand_still) account->refuse_message("MessageStalled", "sends no more of it");
  for (Account* account : slow) account->refuse_message("MessageTooSlow", "sends it too slowly");
  if (!waiting_.empty()) progress_ = clock_.after(options_.patience, [this] { check_progress(); });
}

void Budget::Account::refuse_message(const char* reason, const std::string& why) {
  if (left_) return;
  if (arrival_.is_complete) {
    return owner_->close_later(resource_exhausted("a peer does not read its answers, so its message of " + std::to_string(arriving_) +
                                                  " bytes stays here, while others wait for memory")
                                   .with_reason("AnswersNotRead"));
  }
  const std::uint64_t arrived = std::min(arriving_, arrival_.seen_bytes - arrival_.begun_bytes);
  owner_->close_later(resource_exhausted("a peer has begun a message of " + std::to_string(arriving_) + " bytes, of which " +
                                         std::to_string(arrived) + " have arrived, and " + why + ", while others wait for memory")
                          .with_reason(reason));
}

// A peer with some progress keeps all its messages for now, even a message that stands still: too_slow() judges each message.
std::vector<Budget::Account*> Budget::stalled() const {
  std::map<std::string_view, std::vector<Account*>> of_peers;
  for (const auto& [number, account] : arrivals_) of_peers[account->peer_].push_back(account);
  std::vector<Account*> out;
  for (const auto& [peer, messages] : of_peers) {
    const std::uint64_t bytes = messages.front()->use_->arrived - messages.front()->use_->seen_arrived;
    if (bytes > 0 && bytes >= options_.min_progress_bytes / of_peers.size()) continue;
    std::ranges::copy_if(messages, std::back_inserter(out),
                         [](const Account* account) { return !account->arrival_.is_fresh && !account->arrival_.is_complete; });
  }
  return out;
}

// Returns the messages to refuse, because others have waited for too long: all that are late, and the slowest of those that will be late.
// Only the slowest, since peers may share a slow link: without that message, the others may be in time.
std::vector<Budget::Account*> Budget::too_slow() {
  const TimePoint now = clock_.now();
  bool all = false;                     // a message has waited too long for room beside the messages of all peers
  std::set<const Account::Use*> peers;  // peers of which a message has waited too long for room in their share
  for (const Account* waits : waiting_) {
    if (now - waits->waiting_since_ < options_.waiting_patience) break;
    all = room_for(*waits, waits->wanted_) == Room::kNone;
    if (all) break;
    peers.insert(waits->use_);
  }
  using Seconds = std::chrono::duration<double>;
  std::vector<Account*> out;
  Account* slowest = nullptr;
  double longest = 0;
  for (const auto& [number, account] : arrivals_) {
    if (!all && !peers.contains(account->use_)) {
      account->arrival_.due.reset();
      continue;
    }
    if (!account->arrival_.due) {
      account->arrival_.due = now + options_.finishing_time + std::chrono::seconds(account->arriving_ / options_.finishing_speed);
    }
    if (*account->arrival_.due <= now) {
      out.push_back(account);
      continue;
    }
    if (account->arrival_.is_fresh || account->arrival_.is_complete) continue;
    const std::uint64_t missing =
        account->arriving_ - std::min(account->arriving_, account->arrival_.seen_bytes - account->arrival_.begun_bytes);
    const std::uint64_t arrived = account->use_->arrived - account->arrival_.watched_arrived;
    const double needs = static_cast<double>(missing) * Seconds(now - account->arrival_.watched_since).count() /
                         static_cast<double>(std::max<std::uint64_t>(1, arrived));
    if (needs <= std::max(longest, Seconds(*account->arrival_.due - now).count())) continue;
    slowest = account;
    longest = needs;
  }
  if (slowest != nullptr) out.push_back(slowest);
  return out;
}

// ---- answers that wait

void Budget::Account::change_unsent(std::uint64_t bytes) {
  if (left_ || !accepted_) return;
  Budget& budget = *budget_;
  const std::uint64_t before = budget.unsent_;
  budget.unsent_ += bytes - unsent_;
  use_->unsent += bytes - unsent_;
  if (bytes == 0) {
    budget.unread_.erase(number_);
  } else if (unsent_ == 0) {
    budget.unread_.emplace(number_, this);
  }
  unsent_ = bytes;
  if (budget.unsent_ <= before) return;
  while (before > 0 && budget.unsent_ > budget.options_.max_unsent_bytes) budget.refuse_worst_reader();
  if (!budget.answers_are_many(budget.unsent_)) return;
  if (budget.answers_are_many(before)) return watch_reading();
  for (const auto& [number, account] : budget.unread_) account->watch_reading();
}

// The allowance shrinks as the unread answers of all peers grow, so that some memory is always left for other peers.
std::uint64_t Budget::Account::allowance() const {
  if (left_ || !accepted_) return ~std::uint64_t{0};
  const auto left = [](std::uint64_t most, std::uint64_t used) { return most - std::min(most, used); };
  const std::uint64_t most = budget_->options_.max_unsent_bytes;
  return std::max<std::uint64_t>(kSmallBytes, std::min(left(most, budget_->unsent_) / kUnsentDivisor,
                                                       left(most / budget_->options_.peer_divisor, use_->unsent) / kPeerUnsentDivisor));
}

bool Budget::Account::stands_still() const {
  const Options& options = budget_->options_;
  return use_->unsent > options.max_unsent_bytes / options.peer_divisor && reading_is_watched_ && owner_->taken_bytes() == taken_bytes_;
}

// Closes the largest connection of the peer with the most unread answers; among those that stand still, if there are any.
void Budget::refuse_worst_reader() {
  const auto worst = std::ranges::max_element(unread_, {}, [](const auto& entry) {
    const Account& account = *entry.second;
    return std::tuple(account.stands_still(), account.use_->unsent, account.unsent_);
  });
  Account& account = *worst->second;
  account.owner_->close_later(
      resource_exhausted("a peer does not read the answers to its requests: " + std::to_string(account.use_->unsent) +
                         " bytes wait for it, and " + std::to_string(unsent_) + " for all peers")
          .with_reason("AnswersNotRead"));
}

void Budget::Account::set_paused(bool paused) {
  paused &= !left_;
  if (std::exchange(paused_, paused) == paused) return;
  if (!paused && !left_) use_->reads_nothing = false;
  reading_ = {};
  reading_is_watched_ = false;
  if (has_to_read()) watch_reading();
  if (!paused_) return;
  // A message that waits for memory waits no more: it requests the memory again after the pause.
  budget_->stop_waiting(*this);
  if (std::exchange(arrival_.is_unused, false)) give_all_back();
}

void Budget::Account::watch_reading() {
  if (left_ || std::exchange(reading_is_watched_, true)) return;
  taken_bytes_ = owner_->taken_bytes();
  const Options& options = budget_->options_;
  reading_ = budget_->clock_.after(use_->reads_nothing ? options.patience : options.reading_patience, [this] { check_reading(); });
}

void Budget::Account::check_reading() {
  reading_is_watched_ = false;
  if (!has_to_read()) return;
  if (owner_->taken_bytes() != taken_bytes_) {
    use_->reads_nothing = false;
    return watch_reading();
  }
  if (!std::exchange(use_->reads_nothing, true)) {
    for (const auto& [number, other] : budget_->unread_) {
      if (other != this && other->use_ == use_ && std::exchange(other->reading_is_watched_, false)) other->watch_reading();
    }
  }
  owner_->close_later(resource_exhausted("a peer reads none of the answers that wait for it").with_reason("AnswersNotRead"));
}

// ---- the end

void Budget::Account::leave() {
  if (std::exchange(left_, true)) return;
  Budget& budget = *budget_;
  set_paused(false);
  reading_ = {};
  budget.unsent_ -= unsent_;
  use_->unsent -= unsent_;
  budget.unread_.erase(number_);
  budget.stop_waiting(*this);
  give_back();
  if (accepted_) {
    --budget.connections_;
    if (--use_->connections == 0) budget.peers_.erase(peer_);
  }
  use_ = nullptr;
}

}  // namespace shoal::runtime
