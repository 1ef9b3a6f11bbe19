#include "runtime/loop/busy_poller.h"

#include <algorithm>
#include <utility>

namespace shoal::runtime {

void BusyPoller::add_ring(std::shared_ptr<PollSource> polled) { awake_.push_back({std::move(polled)}); }

void BusyPoller::remove(const PollSource& polled) {
  const auto it = std::find_if(awake_.begin(), awake_.end(), [&](const Awake& a) { return a.polled.get() == &polled; });
  if (it != awake_.end()) return remove(static_cast<std::size_t>(it - awake_.begin()));
  const auto socket = std::find_if(sockets_.begin(), sockets_.end(), [&](const auto& s) { return s.get() == &polled; });
  if (socket == sockets_.end()) return;
  const auto gone = std::move(*socket);  // perhaps the last reference: keeps the object until this function returns
  *socket = std::move(sockets_.back());
  sockets_.pop_back();
}

void BusyPoller::remove(std::size_t index) {
  const auto gone = std::move(awake_[index].polled);  // perhaps the last reference: keeps the object until this function returns
  awake_[index] = std::move(awake_.back());
  awake_.pop_back();
}

// A ring's poll() may add to awake_ and remove from it.
bool BusyPoller::poll_rings() {
  for (int i = 0; i < kAtOnce && !awake_.empty(); ++i) {
    next_ = (next_ + 1) % awake_.size();
    Awake& awake = awake_[next_];
    const auto polled = awake.polled;
    ++awake.idle;
    const bool rare = awake_.size() > kFew && awake.idle > kIdlePolls;
    if (polled->poll()) {
      if (next_ < awake_.size() && awake_[next_].polled == polled) awake_[next_].idle = 0;
      return true;
    }
    if (rare && polled->prepare_to_sleep()) remove(*polled);
    if (static_cast<std::size_t>(i) + 1 >= awake_.size()) break;
  }
  return false;
}

bool BusyPoller::poll_next_socket() {
  if (sockets_.empty()) return false;
  next_socket_ = (next_socket_ + 1) % sockets_.size();
  const auto polled = sockets_[next_socket_];
  return polled->poll();
}

bool BusyPoller::prepare_to_sleep() {
  while (!awake_.empty()) {
    if (!awake_.back().polled->prepare_to_sleep()) return false;
    awake_.pop_back();
  }
  while (!sockets_.empty()) {
    if (!sockets_.back()->prepare_to_sleep()) return false;
    sockets_.pop_back();
  }
  return true;
}

}  // namespace shoal::runtime
