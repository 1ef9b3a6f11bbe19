#include "runtime/transport/conformance/memory_layer.h"

#include <cstring>

namespace shoal::runtime {

namespace {

constexpr std::size_t kCopied = 512;  // the size up to which a send is complete at once

}  // namespace

class MemoryNetwork::Layer final : public MessageLayer {
 public:
  Layer(MemoryNetwork& network, int rank) : network_(network), rank_(rank) {}
  ~Layer() override { begin(true); }

  const char* name() const override { return "messages"; }

  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) override {
    const std::lock_guard lock(network_.mutex_);
    transfer.state = Transfer::State::kPending;
    if (own().death || network_.ranks_[static_cast<std::size_t>(to)].death)
      return network_.add_event(rank_, {&transfer, Transfer::State::kFailed, 0});
    const Lane lane{rank_, to, channel, epoch_};
    Sent& sent = network_.sent_[lane].emplace_back();
    if (data.size() <= kCopied) {
      sent.copy.assign(data.begin(), data.end());
      transfer.state = Transfer::State::kComplete;
    } else {
      sent.data = data;
      sent.transfer = &transfer;
    }
    network_.match(lane);
  }

  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) override {
    const std::lock_guard lock(network_.mutex_);
    transfer.state = Transfer::State::kPending;
    const Lane lane{from, rank_, channel, epoch_};
    network_.posted_[lane].push_back({data, &transfer});
    network_.match(lane);
  }

  bool progress() override {
    const std::lock_guard lock(network_.mutex_);
    for (const Event& event : own().events) {
      event.transfer->state = event.state;
      event.transfer->bytes = event.bytes;
    }
    const bool moved = !own().events.empty();
    own().events.clear();
    return moved;
  }

  void wait(Duration limit) override {
    std::unique_lock lock(network_.mutex_);
    own().changed.wait_for(lock, limit, [this] { return own().woken || !own().events.empty(); });
    own().woken = false;
  }

  void wake() override {
    const std::lock_guard lock(network_.mutex_);
    own().woken = true;
    own().changed.notify_all();
  }

  std::optional<Error> lost(int rank) const override {
    const std::lock_guard lock(network_.mutex_);
    const auto& death = own().death ? own().death : network_.ranks_[static_cast<std::size_t>(rank)].death;
    if (!death) return std::nullopt;
    return unavailable(*death);
  }

  void flush(Duration) override {}
  void reset(std::span<const int>) override { begin(true); }
  void begin_epoch() override { begin(false); }

 private:
  Rank& own() const { return network_.ranks_[static_cast<std::size_t>(rank_)]; }
  void begin(bool sends) {
    const std::lock_guard lock(network_.mutex_);
    network_.drop(rank_, sends);
    own().events.clear();
    ++epoch_;
  }

  MemoryNetwork& network_;
  const int rank_;
  int epoch_ = 0;
};

std::shared_ptr<MessageLayer> MemoryNetwork::join(int rank) { return std::make_shared<Layer>(*this, rank); }

void MemoryNetwork::kill(int rank, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].death = cause;
  for (auto& r : ranks_) {
    r.woken = true;
    r.changed.notify_all();
  }
}

void MemoryNetwork::add_event(int rank, Event event) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  r.events.push_back(event);
  r.changed.notify_all();
}

void MemoryNetwork::match(const Lane& lane) {
  auto& sent = sent_[lane];
  auto& posted = posted_[lane];
  while (!sent.empty() && !posted.empty()) {
    const Sent& from = sent.front();
    const auto data = from.transfer != nullptr ? from.data : std::span<const std::byte>(from.copy);
    const Posted to = posted.front();
    const bool fits = data.size() <= to.data.size();
    if (fits && !data.empty()) std::memcpy(to.data.data(), data.data(), data.size());
    add_event(std::get<1>(lane), {to.transfer, fits ? Transfer::State::kComplete : Transfer::State::kFailed, data.size()});
    if (from.transfer != nullptr) add_event(std::get<0>(lane), {from.transfer, Transfer::State::kComplete, 0});
    sent.pop_front();
    posted.pop_front();
  }
}

void MemoryNetwork::drop(int rank, bool sends) {
  for (auto& [lane, queue] : posted_) {
    if (std::get<1>(lane) == rank) queue.clear();
  }
  if (!sends) return;
  for (auto& [lane, queue] : sent_) {
    if (std::get<0>(lane) == rank) std::erase_if(queue, [](const Sent& s) { return s.transfer != nullptr; });
  }
}

}  // namespace shoal::runtime
