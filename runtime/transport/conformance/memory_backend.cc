#include "runtime/transport/conformance/memory_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr auto kTimeout = std::chrono::seconds(60);  // time limit of a call that sets none

Error diverged(std::string message) {
  return invalid_argument(std::move(message)).with_reason("Diverged").with_hint("every rank must make the same calls");
}

template <class T>
std::vector<std::span<T>> split(std::span<T> whole, Communicator::Counts counts) {
  std::vector<std::span<T>> out;
  for (const auto n : counts) {
    out.push_back(whole.first(n));
    whole = whole.subspan(n);
  }
  return out;
}

class SentWork final : public Work {
 public:
  bool ended() const override { return true; }
  Result<void> wait() override { return {}; }
};

}  // namespace

class MemoryHub::Receive final : public Work {
 public:
  Receive(MemoryHub& hub, Channel& channel, int from, std::span<std::byte> data, std::uint32_t tag, const Call& call)
      : hub_(hub), channel_(channel), number_(channel.num_receives++), from_(from), data_(data), tag_(tag), call_(call) {}
  bool ended() const override {
    const Lock lock(hub_.mutex_);
    return result_ || hub_.failure_ || arrived();
  }
  Result<void> wait() override {
    Lock lock(hub_.mutex_);
    if (!result_) result_ = take(lock);
    return *result_;
  }

 private:
  bool arrived() const { return channel_.messages.count(number_) > 0; }
  Result<void> take(Lock& lock) {
    SHOAL_OK(hub_.wait(lock, [&] { return arrived(); }, [&](int rank) { return rank == from_; }, call_));
    const auto message = std::move(channel_.messages.extract(number_).mapped());
    if (message.tag != tag_ || message.bytes.size() != data_.size()) {
      return fail(diverged(fmt::format("rank {} sends {} bytes with tag {}, the receive '{}' expects {} bytes with tag {}", from_,
                                       message.bytes.size(), message.tag, call_.label, data_.size(), tag_)));
    }
    std::copy(message.bytes.begin(), message.bytes.end(), data_.begin());
    return {};
  }

  MemoryHub& hub_;
  Channel& channel_;
  const std::uint64_t number_;
  const int from_;
  const std::span<std::byte> data_;
  const std::uint32_t tag_;
  const Call call_;
  std::optional<Result<void>> result_;
};

class MemoryHub::Backend final : public CollectiveBackend {
 public:
  Backend(MemoryHub& hub, int rank) : hub_(hub), rank_(rank) {}

  Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                          const Call& call) override {
    Part part = part_of(fmt::format("{} ({} bytes)", call.what, fmt::join(counts, ", ")), call);
    std::fill(part.to.begin(), part.to.end(), input);
    part.from = split(output, counts);
    return hub_.meet(rank_, std::move(part), call);
  }
  Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                          Communicator::Counts receives, const Call& call) override {
    Part part = part_of(call.what, call);
    part.to = split(input, sends);
    part.from = split(output, receives);
    return hub_.meet(rank_, std::move(part), call);
  }
  Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) override {
    Part part = part_of(fmt::format("{} ({} bytes)", call.what, data.size()), call);
    for (std::size_t r = 0; rank_ == root && r < part.to.size(); ++r) part.to[r] = data;
    part.from[static_cast<std::size_t>(root)] = data;
    return hub_.meet(rank_, std::move(part), call);
  }
  Result<void> barrier(const Call& call) override { return hub_.meet(rank_, part_of("barrier", call), call); }
  WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call&) override {
    const Lock lock(hub_.mutex_);
    auto& channel = hub_.channels_[{rank_, to}];
    channel.messages[channel.num_sent++] = {tag, {data.begin(), data.end()}};
    hub_.changed_.notify_all();
    return std::make_shared<SentWork>();
  }
  WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) override {
    const Lock lock(hub_.mutex_);
    return std::make_shared<Receive>(hub_, hub_.channels_[{from, rank_}], from, data, tag, call);
  }
  void abort(const Error& cause) override {
    const Lock lock(hub_.mutex_);
    if (!hub_.failure_) hub_.failure_ = cause;
    hub_.changed_.notify_all();
  }
  void leave() override { hub_.end(rank_, unavailable(fmt::format("rank {} has left", rank_)).with_reason("ActorDied")); }

 private:
  Part part_of(std::string what, const Call& call) const {
    const std::size_t world = hub_.ended_.size();
    return {std::move(what), call.label, std::vector<std::span<const std::byte>>(world), std::vector<std::span<std::byte>>(world)};
  }

  MemoryHub& hub_;
  const int rank_;
};

std::shared_ptr<CollectiveBackend> MemoryHub::join(int rank) { return std::make_shared<Backend>(*this, rank); }

void MemoryHub::kill(int rank, const std::string& cause) {
  end(rank, unavailable(fmt::format("rank {} is gone: {}", rank, cause)).with_reason("ActorDied"));
}

void MemoryHub::end(int rank, const Error& how) {
  const Lock lock(mutex_);
  auto& ended = ended_[static_cast<std::size_t>(rank)];
  if (!ended) ended = how;
  changed_.notify_all();
}

std::shared_ptr<MemoryHub::Round> MemoryHub::make_round() const {
  auto round = std::make_shared<Round>();
  round->parts.resize(ended_.size());
  return round;
}

template <class Over, class Needs>
Result<void> MemoryHub::wait(Lock& lock, const Over& over, const Needs& needs, const Call& call) {
  const auto first_ended = [&] {
    std::size_t r = 0;
    while (r < ended_.size() && !(ended_[r] && needs(static_cast<int>(r)))) ++r;
    return r;
  };
  const Duration limit = call.timeout > Duration{} ? call.timeout : Duration(kTimeout);
  changed_.wait_for(lock, limit, [&] { return over() || failure_ || first_ended() < ended_.size(); });
  if (over()) return {};
  // If a rank failed alone, others could still touch its memory. So the failure of one rank is the failure of the group.
  if (!failure_) {
    const std::size_t r = first_ended();
    failure_ = r < ended_.size() ? *ended_[r] : deadline_exceeded(fmt::format("'{}' waited too long", call.label)).with_reason("Late");
    changed_.notify_all();
  }
  return fail(*failure_);
}

Result<void> MemoryHub::meet(int rank, Part part, const Call& call) {
  Lock lock(mutex_);
  if (failure_) return fail(*failure_);
  const auto round = next_;
  round->parts[static_cast<std::size_t>(rank)] = std::move(part);
  if (++round->num_parts == round->parts.size()) {
    round->result = move(*round);
    next_ = make_round();
    changed_.notify_all();
  }
  const auto needs = [&](int r) { return !round->parts[static_cast<std::size_t>(r)]; };
  SHOAL_OK(wait(lock, [&] { return round->result.has_value(); }, needs, call));
  return *round->result;
}

Result<void> MemoryHub::move(const Round& round) {
  const std::size_t world = round.parts.size();
  for (std::size_t r = 1; r < world; ++r) {
    const auto &first = *round.parts[0], &other = *round.parts[r];
    if (first.what == other.what) continue;
    return fail(diverged(fmt::format("the ranks' collectives differ: rank 0 is in {} '{}', rank {} in {} '{}'", first.what, first.label, r,
                                     other.what, other.label)));
  }
  for (std::size_t r = 0; r < world; ++r) {
    for (std::size_t q = 0; q < world; ++q) {
      const auto sent = round.parts[r]->to[q];
      const auto wanted = round.parts[q]->from[r];
      if (sent.size() != wanted.size())
        return fail(diverged(fmt::format("rank {} sends {} bytes to rank {}, which expects {}", r, sent.size(), q, wanted.size())));
      if (!sent.empty()) std::memmove(wanted.data(), sent.data(), sent.size());
    }
  }
  return {};
}

}  // namespace shoal::runtime
