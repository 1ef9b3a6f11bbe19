#include "runtime/net/socket/budget.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace shoal::runtime {

namespace {
constexpr std::uint64_t kUnsentDivisor = 8;     // part of the free memory that one connection's answers may take
constexpr std::uint64_t kProgressDivisor = 16;  // part of a message that has to arrive within the patience
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
  auto out = outgoing();
  out->peer_ = peer;
  out->use_ = &peers_[peer];
  ++out->use_->connections;
  ++connections_;
  return out;
}

std::unique_ptr<Budget::Account> Budget::outgoing() { return std::unique_ptr<Account>(new Account(shared_from_this(), next_number_++)); }

// ---- messages that arrive

bool Budget::fits(const Account& account, std::uint64_t bytes) const {
  const auto within = [bytes](std::uint64_t used, std::uint64_t most) { return used == 0 || used + bytes <= most; };
  return within(arriving_, options_.max_arriving_bytes) &&
         (!account.accepted() || within(account.use_->arriving, options_.max_arriving_bytes / options_.peer_divisor));
}

void Budget::grant(Account& account, std::uint64_t bytes) {
  account.arriving_ += bytes;
  arriving_ += bytes;
  if (account.accepted()) account.use_->arriving += bytes;
  account.is_fresh_ = true;
  arrivals_[account.number_] = &account;
}

bool Budget::Account::take(std::uint64_t bytes) {
  if (left_ || arriving_ >= bytes) return true;  // granted while it waited
  if (urgent_ || budget_->fits(*this, bytes)) {
    if (std::exchange(waiting_, false)) budget_->waiting_.remove(this);
    budget_->grant(*this, bytes);
    return true;
  }
  wanted_ = bytes;
  if (!std::exchange(waiting_, true)) budget_->waiting_.push_back(this);
  budget_->watch();
  return false;
}

void Budget::Account::give_all_back() {
  budget_->arriving_ -= arriving_;
  if (accepted()) use_->arriving -= arriving_;
  arriving_ = 0;
  budget_->arrivals_.erase(number_);
  budget_->grant_waiting();
}

void Budget::grant_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Account& account = **it;
    if (!fits(account, account.wanted_)) {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    account.waiting_ = false;
    grant(account, account.wanted_);
    account.owner_->on_room();
  }
  if (waiting_.empty()) progress_ = {};
}

void Budget::watch() {
  if (waiting_.size() == 1) progress_ = clock_.after(options_.patience, [this] { check_progress(); });
}

// A message that others wait for has to arrive at a least speed.
void Budget::check_progress() {
  std::vector<Account*> stalled;
  for (const auto& [number, account] : arrivals_) {
    const std::uint64_t received = account->owner_->received_bytes();
    if (std::exchange(account->is_fresh_, false)) {  // its patience begins with this check
      account->seen_bytes_ = received;
      continue;
    }
    const std::uint64_t least = std::clamp(account->arriving_ / kProgressDivisor, options_.min_progress_bytes, options_.max_progress_bytes);
    if (received - std::exchange(account->seen_bytes_, received) < least) stalled.push_back(account);
  }
  for (Account* account : stalled) {
    account->owner_->on_refused(resource_exhausted("a peer has begun a message of " + std::to_string(account->arriving_) +
                                                   " bytes and sends no more of it, while others wait for memory")
                                    .with_reason("MessageStalled"));
  }
  if (!waiting_.empty()) progress_ = clock_.after(options_.patience, [this] { check_progress(); });
}

// ---- answers that wait

void Budget::Account::change_unsent(std::uint64_t bytes) {
  if (left_ || !accepted()) return;
  const bool more = bytes > unsent_;
  if (paused_ && !more) set_paused(true);  // the peer reads: it has its whole patience again
  budget_->unsent_ += bytes - unsent_;
  unsent_ = bytes;
  if (bytes == 0) {
    budget_->unread_.erase(number_);
  } else {
    budget_->unread_[number_] = this;
  }
  if (more && budget_->unsent_ > budget_->options_.max_unsent_bytes) budget_->refuse_largest();
}

// The allowance shrinks as the sum grows, so that some memory is always left for others.
std::uint64_t Budget::Account::allowance() const {
  if (left_ || !accepted()) return ~std::uint64_t{0};
  const std::uint64_t most = budget_->options_.max_unsent_bytes;
  const std::uint64_t left = most - std::min(most, budget_->unsent_);
  return std::max<std::uint64_t>(kSmallBytes, left / kUnsentDivisor);
}

void Budget::refuse_largest() {
  const auto largest = std::ranges::max_element(unread_, {}, [](const auto& entry) { return entry.second->unsent_; });
  Account& account = *largest->second;
  account.owner_->on_refused(resource_exhausted("a peer does not read: " + std::to_string(account.unsent_) + " bytes wait for it, and " +
                                                std::to_string(unsent_) + " for all peers")
                                 .with_reason("AnswersNotRead"));
}

void Budget::Account::set_paused(bool paused) {
  paused_ = paused && !left_;
  reading_ = {};
  if (!paused_) return;
  reading_ = budget_->clock_.after(budget_->options_.reading_patience, [this] {
    owner_->on_refused(resource_exhausted("a peer has read none of the " + std::to_string(unsent_) + " bytes that wait for it")
                           .with_reason("AnswersNotRead"));
  });
}

// ---- the end

void Budget::Account::leave() {
  if (std::exchange(left_, true)) return;
  Budget& budget = *budget_;
  set_paused(false);
  if (waiting_) budget.waiting_.remove(this);
  budget.unsent_ -= unsent_;
  budget.unread_.erase(number_);
  if (accepted()) --budget.connections_;
  const bool held = arriving_ != 0 || waiting_;
  waiting_ = false;
  if (arriving_ != 0) {
    give_all_back();
  } else if (held && budget.waiting_.empty()) {
    budget.progress_ = {};
  }
  if (accepted() && --use_->connections == 0) budget.peers_.erase(peer_);
  use_ = nullptr;
}

}  // namespace shoal::runtime
