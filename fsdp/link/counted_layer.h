// Parts of tests of a HostLink: a layer that counts bytes and holds messages back, and a clock that runs ahead.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/layout/hosts.h"
#include "runtime/loop/clock.h"
#include "runtime/transport/message_layer.h"

namespace shoal::fsdp {

using namespace std::chrono_literals;
using Channel = runtime::MessageLayer::Channel;

// Counts the bytes that ranks send as data, by sender and receiver.
struct Traffic {
  std::function<bool(runtime::MessageLayer::Channel)> held = {};  // true: messages of this channel wait
  std::mutex mutex;
  std::map<std::pair<int, int>, std::size_t> bytes;
  std::size_t between(const Hosts& hosts, int from, int to) {
    const std::lock_guard lock(mutex);
    std::size_t out = 0;
    for (const auto& [pair, n] : bytes) out += hosts.host_of(pair.first) == from && hosts.host_of(pair.second) == to ? n : 0;
    return out;
  }
};

// A clock that moves a tenth of a second ahead each time that it is read.
class HastyClock final : public runtime::Clock {
 public:
  explicit HastyClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)) {}
  runtime::TimePoint now() const override { return clock_->now() + 100ms * num_reads_++; }
  std::int64_t unix_millis() const override { return clock_->unix_millis(); }
  runtime::Timer after(runtime::Duration delay, std::function<void()> fn) override { return clock_->after(delay, std::move(fn)); }
  int num_reads() const { return num_reads_; }

 private:
  const std::shared_ptr<Clock> clock_;
  mutable std::atomic<int> num_reads_{0};
};

class CountedLayer final : public runtime::MessageLayer {
 public:
  CountedLayer(std::shared_ptr<MessageLayer> layer, int rank, Traffic& traffic)
      : layer_(std::move(layer)), rank_(rank), traffic_(traffic) {}
  const char* name() const override { return layer_->name(); }
  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) override {
    if (traffic_.held && traffic_.held(channel)) {
      transfer.state = Transfer::State::kPending;
      held_.push_back([this, to, channel, data, &transfer] { layer_->send(to, channel, data, transfer); });
      return;
    }
    if (channel == Channel::kData || channel == Channel::kResults) {
      const std::lock_guard lock(traffic_.mutex);
      traffic_.bytes[{rank_, to}] += data.size();
    }
    layer_->send(to, channel, data, transfer);
  }
  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) override {
    layer_->receive(from, channel, data, transfer);
  }
  bool progress() override {
    const bool release = !held_.empty() && !traffic_.held(Channel::kData);
    if (release) {
      for (const auto& send : std::exchange(held_, {})) send();
    }
    return layer_->progress() || release;
  }
  void wait(runtime::Duration limit) override { layer_->wait(held_.empty() ? limit : runtime::Duration(1ms)); }
  void wake() override { layer_->wake(); }
  std::optional<Error> lost(int rank) const override { return layer_->lost(rank); }
  void flush(runtime::Duration limit) override { layer_->flush(limit); }
  void reset(std::span<const int> gone) override { layer_->reset(gone); }
  void begin_epoch() override { layer_->begin_epoch(); }

 private:
  const std::shared_ptr<MessageLayer> layer_;
  const int rank_;
  Traffic& traffic_;
  std::vector<std::function<void()>> held_;
};

}  // namespace shoal::fsdp
