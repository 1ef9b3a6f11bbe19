#include "runtime/transport/shm/shm_group.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::runtime {

ShmGroup::ShmGroup(std::shared_ptr<Mapping> mapping, ShmMemory::Shape shape, int rank, std::optional<Former> former)
    : mapping_(std::move(mapping)),
      memory_(mapping_->data(), shape),
      rank_(rank),
      page_(memory_.membership_page()),
      ledger_(memory_.ledger(), page_, rank, shape.world_size),
      direct_reads_(memory_, rank),
      former_(std::move(former)) {}

void ShmGroup::join() {
  direct_reads_.join();
  memory_.rank(rank_).present.store(1, std::memory_order_release);
  page_.notify_all();
}

std::vector<int> ShmGroup::lost() const {
  std::vector<int> out;
  for (int r = 0; r < world_size(); ++r) {
    if (page_.is_gone(static_cast<std::uint32_t>(r)) || (r != rank_ && ledger_.has_left(r))) out.push_back(r);
  }
  return out;
}

std::vector<int> ShmGroup::agree_on_survivors() {
  std::uint64_t mask = 0;
  const auto without = lost();
  for (int r = 0; r < world_size(); ++r) {
    if (std::find(without.begin(), without.end(), r) == without.end()) mask |= std::uint64_t{1} << r;
  }
  std::uint64_t agreed = 0;
  if (memory_.survivors().compare_exchange_strong(agreed, mask)) agreed = mask;
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if ((agreed >> r & 1) != 0) ranks.push_back(r);
  }
  return ranks;
}

std::optional<std::string> ShmGroup::death(int rank) const {
  const auto member = static_cast<std::uint32_t>(rank);
  if (!page_.is_gone(member)) return std::nullopt;
  return page_.cause(member);
}

Error ShmGroup::failure_in(const std::string& operation) const {
  auto cause = ledger_.failure();
  if (!cause) return internal("an operation ended without a cause");
  return Error(*cause).in("in " + operation).in(fmt::format("seen by rank {}", rank_));
}

bool ShmGroup::meet() {
  if (met_) return true;
  met_ = first_absent() < 0;
  if (met_) former_.reset();
  return met_;
}

int ShmGroup::first_absent() const {
  for (int r = 0; r < world_size(); ++r) {
    if (memory_.rank(r).present.load(std::memory_order_acquire) == 0) return r;
  }
  return -1;
}

int ShmGroup::first_lost() const {
  const int gone = page_.first_gone(static_cast<std::uint32_t>(world_size()));
  for (int r = gone; r >= 0 && r < world_size(); ++r) {
    if (page_.is_gone(static_cast<std::uint32_t>(r)) && !ledger_.has_left(r)) return r;
  }
  return -1;
}

bool ShmGroup::has_failed() {
  if (ledger_.failure()) return true;
  const auto lose = [this](const MembershipPage& page, int member, int rank) {
    ledger_.fail(
        unavailable(fmt::format("rank {} is gone: {}", rank, page.cause(static_cast<std::uint32_t>(member)))).with_reason("ActorDied"));
    return true;
  };
  if (const int r = first_lost(); r >= 0) return lose(page_, r, r);
  if (former_) {
    const MembershipPage before(former_->mapping->data());
    for (std::size_t r = 0; r < former_->ranks.size(); ++r) {
      if (before.is_gone(static_cast<std::uint32_t>(former_->ranks[r]))) return lose(before, former_->ranks[r], static_cast<int>(r));
    }
  }
  return false;
}

}  // namespace shoal::runtime
