#include "runtime/transport/tcp/sockets/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace shoal::runtime {

namespace {

constexpr int kEvents = 64;  // events fetched at once

}  // namespace

Result<void> Poller::open() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_ || !wake_) return fail(from_errno(errno, "epoll"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) return fail(from_errno(errno, "epoll"));
  return {};
}

void Poller::add(int socket, Pollable& pollable) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &pollable;
  // Fails only if the kernel has no memory. The socket then reports nothing, and its operations end at their time limit.
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
}

void Poller::remove(int socket) {
  // A forked child shares the parent's epoll.
  if (socket >= 0 && !process_.forked()) (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void Poller::forget(int socket, Pollable& pollable) {
  remove(socket);
  std::erase(queued_, &pollable);
  std::replace(turn_.begin(), turn_.end(), &pollable, static_cast<Pollable*>(nullptr));
}

void Poller::queue(Pollable& pollable) {
  if (std::exchange(pollable.queued_, true)) return;
  queued_.push_back(&pollable);
}

void Poller::poll(Duration limit) {
  epoll_event events[kEvents];
  const Duration left = has_queued() ? Duration{} : std::max(limit, Duration{});
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  const int n = epoll_wait(epoll_.get(), events, kEvents, static_cast<int>(ms));
  for (int i = 0; i < n; ++i) {
    const auto& event = events[i];
    if (event.data.ptr == nullptr) {
      std::uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
      continue;
    }
    auto& pollable = *static_cast<Pollable*>(event.data.ptr);
    const bool over = (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    pollable.hung_up |= over;
    pollable.readable |= over || (event.events & EPOLLIN) != 0;
    pollable.writable |= (event.events & EPOLLOUT) != 0;
    queue(pollable);
  }
}

void Poller::advance_queued() {
  turn_.swap(queued_);
  for (std::size_t i = 0; i < turn_.size(); ++i) {
    if (turn_[i] == nullptr) continue;
    turn_[i]->queued_ = false;
    turn_[i]->advance();
  }
  turn_.clear();
}

void Poller::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

}  // namespace shoal::runtime
