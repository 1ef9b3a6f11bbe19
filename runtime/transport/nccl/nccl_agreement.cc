#include "runtime/transport/nccl/nccl_agreement.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

Error diverged(std::string message) {
  return invalid_argument(std::move(message)).with_reason("Diverged").with_hint("every rank must make the same calls in the same order");
}

}  // namespace

Call NcclAgreement::call() const {
  Call out;
  out.label = fmt::format("for {}", operation_->what());
  out.step = operation_->call().step;
  out.timeout = timeout_;
  out.background = true;
  return out;
}

void NcclAgreement::begin(std::shared_ptr<NcclCollective> operation, Duration timeout) {
  operation_ = std::move(operation);
  timeout_ = timeout;
  step_ = Step::kFingerprints;
  // The maximum of a number and of its complement: both come back unchanged only if all ranks passed the same number.
  fingerprints_ = {operation_->fingerprint(), ~operation_->fingerprint()};
  const auto bytes = std::as_writable_bytes(std::span(fingerprints_));
  work_ = control_->all_reduce(bytes, bytes, DType::kInt64, ReduceOp::kMax, call());
}

Result<bool> NcclAgreement::advance() {
  if (work_ == nullptr || !work_->ended()) return false;
  return proceed();
}

bool NcclAgreement::settle() {
  if (work_ == nullptr) return false;
  const auto proceeded = proceed();
  return proceeded && work_ != nullptr;
}

Result<bool> NcclAgreement::proceed() {
  const auto ended = std::exchange(work_, nullptr)->wait();
  if (!ended) return fail(ended.error());
  const auto own = operation_->fingerprint();
  switch (step_) {
    case Step::kFingerprints:
      if (fingerprints_[0] != own || fingerprints_[1] != ~own) {
        gather_descriptions();
        return true;
      }
      if (operation_->pairwise() != nullptr) {
        exchange_counts();
        return true;
      }
      break;
    case Step::kDescriptions:
      return fail(difference());
    case Step::kCounts:
      SHOAL_OK(check_counts());
      break;
  }
  operation_->set_agreed();
  operation_.reset();
  return true;
}

void NcclAgreement::gather_descriptions() {
  step_ = Step::kDescriptions;
  own_ = {operation_->fingerprint(), {}};
  const auto& text = operation_->what();
  std::memcpy(own_.text.data(), text.data(), std::min(text.size(), kTextBytes - 1));
  const auto world = static_cast<std::size_t>(control_->world_size());
  descriptions_.assign(world, {});
  work_ = control_->all_gather(std::as_bytes(std::span(&own_, 1)), std::as_writable_bytes(std::span(descriptions_)),
                               std::vector<std::size_t>(world, sizeof(Description)), DType::kUInt8, call());
}

Error NcclAgreement::difference() const {
  const auto& first = descriptions_[0];
  const auto other =
      std::find_if(descriptions_.begin(), descriptions_.end(), [&](const auto& d) { return d.fingerprint != first.fingerprint; });
  return diverged(fmt::format("the ranks' collectives differ: rank 0 is in {}, rank {} in {}", first.text.data(),
                              other - descriptions_.begin(), other->text.data()));
}

void NcclAgreement::exchange_counts() {
  step_ = Step::kCounts;
  const auto& counts = operation_->pairwise()->counts;
  sends_.assign(counts.begin(), counts.end());
  sent_by_others_.assign(counts.size(), 0);
  const std::vector<std::size_t> each(counts.size(), sizeof(std::uint64_t));
  work_ = control_->all_to_all(std::as_bytes(std::span(sends_)), std::as_writable_bytes(std::span(sent_by_others_)), each, each,
                               DType::kUInt64, call());
}

Result<void> NcclAgreement::check_counts() const {
  const auto& expected = operation_->pairwise()->receive;
  for (std::size_t r = 0; r < expected.size(); ++r) {
    if (sent_by_others_[r] == expected[r]) continue;
    return fail(diverged(fmt::format("in {}, rank {} sends {} bytes to rank {}, which expects {}", operation_->what(), r,
                                     sent_by_others_[r], control_->rank(), expected[r])));
  }
  return {};
}

}  // namespace shoal::runtime
