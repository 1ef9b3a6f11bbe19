// The ranks' agreement that they are in the same collective, beside the data: NCCL itself would hang, or mix up their bytes.
//
// The agreement travels over the group's control communicator, on the host, while the device works. One collective is compared at a time,
// by an all_reduce of 16 bytes. Only where that shows a difference do the ranks exchange descriptions.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/transport/nccl/nccl_operation.h"

namespace shoal::runtime {

class NcclAgreement {
 public:
  explicit NcclAgreement(std::shared_ptr<Communicator> control) : control_(std::move(control)) {}

  // Begins to compare an operation. Call it once the operation before has been compared.
  void begin(std::shared_ptr<NcclCollective> operation, Duration timeout);
  bool busy() const { return work_ != nullptr; }
  // Returns true after progress; the operation is then agreed, or a further exchange is under way. InvalidArgument/Diverged if ranks
  // differ. With an error, nothing is under way any more.
  Result<bool> advance();
  // To be called after the control communicator's failure: ends what is under way, and returns true if a further exchange has begun.
  bool settle();

 private:
  static constexpr std::size_t kTextBytes = 240;
  struct Description {
    std::int64_t fingerprint = 0;
    std::array<char, kTextBytes> text{};
  };
  enum class Step { kFingerprints, kDescriptions, kCounts };

  Result<bool> proceed();
  Call call() const;
  void gather_descriptions();
  void exchange_counts();
  Error difference() const;
  Result<void> check_counts() const;

  const std::shared_ptr<Communicator> control_;
  std::shared_ptr<NcclCollective> operation_;
  Duration timeout_{};
  Step step_ = Step::kFingerprints;
  WorkPtr work_;
  std::array<std::int64_t, 2> fingerprints_{};
  std::vector<Description> descriptions_;
  Description own_;
  std::vector<std::uint64_t> sends_, sent_by_others_;
};

}  // namespace shoal::runtime
