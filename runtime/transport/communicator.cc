#include "runtime/transport/communicator.h"

#include <numeric>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

class FailedWork final : public Work {
 public:
  explicit FailedWork(Error error) : error_(std::move(error)) {}
  bool done() const override { return true; }
  Result<void> wait() override { return fail(error_); }

 private:
  const Error error_;
};

Result<void> check_counts(const Communicator& c, Communicator::Counts counts, std::size_t total, const char* what, DType dtype) {
  if (counts.size() != static_cast<std::size_t>(c.world_size())) {
    return fail(invalid_argument(fmt::format("{} counts for {} ranks", counts.size(), c.world_size())));
  }
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] % dtype_bytes(dtype) != 0)
      return fail(invalid_argument(fmt::format("rank {}'s part of {} bytes is no whole number of {}", r, counts[r], dtype_name(dtype))));
  }
  const std::size_t sum = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (sum != total) return fail(invalid_argument(fmt::format("the {} has {} bytes, the ranks' parts add up to {}", what, total, sum)));
  return {};
}

Result<void> check_own(std::size_t bytes, std::size_t count, const char* what) {
  if (bytes == count) return {};
  return fail(invalid_argument(fmt::format("the {} has {} bytes, this rank's part {}", what, bytes, count)));
}

}  // namespace

WorkPtr failed_work(Error error) { return std::make_shared<FailedWork>(std::move(error)); }

Result<void> check_all_gather(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts counts, DType dtype) {
  SHOAL_OK(check_counts(c, counts, output, "output", dtype));
  return check_own(input, counts[static_cast<std::size_t>(c.rank())], "input");
}

Result<void> check_reduce_scatter(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts counts, DType dtype,
                                  ReduceOp op) {
  SHOAL_OK(check_reducible(dtype, op));
  SHOAL_OK(check_counts(c, counts, input, "input", dtype));
  return check_own(output, counts[static_cast<std::size_t>(c.rank())], "output");
}

Result<void> check_all_reduce(std::size_t input, std::size_t output, DType dtype, ReduceOp op) {
  SHOAL_OK(check_reducible(dtype, op));
  if (input != output) return fail(invalid_argument(fmt::format("the input has {} bytes, the output {}", input, output)));
  if (input % dtype_bytes(dtype) != 0)
    return fail(invalid_argument(fmt::format("{} bytes are no whole number of {}", input, dtype_name(dtype))));
  return {};
}

Result<void> check_all_to_all(const Communicator& c, std::size_t input, std::size_t output, Communicator::Counts send,
                              Communicator::Counts receive, DType dtype) {
  SHOAL_OK(check_counts(c, send, input, "input", dtype));
  SHOAL_OK(check_counts(c, receive, output, "output", dtype));
  const auto self = static_cast<std::size_t>(c.rank());
  if (send[self] == receive[self]) return {};
  return fail(invalid_argument(fmt::format("this rank sends itself {} bytes and expects {}", send[self], receive[self])));
}

Result<void> check_peer(const Communicator& c, int rank, const char* what, bool may_be_self) {
  if (rank < 0 || rank >= c.world_size()) {
    return fail(invalid_argument(fmt::format("the {} is rank {} of a group of {}", what, rank, c.world_size())));
  }
  if (rank == c.rank() && !may_be_self) return fail(invalid_argument(fmt::format("the {} is rank {} itself", what, rank)));
  return {};
}

}  // namespace shoal::runtime
