#include "runtime/loop/loop.h"

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <set>

#include <unistd.h>

#include "runtime/loop/busy_poller.h"

namespace shoal::runtime {

namespace {
constexpr int kInARow = 16;
}

struct Loop::Impl {
  asio::io_context io{1};  // concurrency hint: one thread at a time
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  BusyPoller busy_poller;
  std::set<int> tracked;
  int in_a_row = 0;  // number of times in a row that the busy poller had work, so that `io` had no turn

  bool found_in_memory() {
    if (++in_a_row < kInARow && busy_poller.poll_rings()) return true;
    const bool others = in_a_row == kInARow;
    in_a_row = 0;
    return others && (io.poll_one() > 0 || busy_poller.poll_rings());
  }
};

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() = default;

void Loop::post(std::function<void()> fn) { asio::post(impl_->io, std::move(fn)); }
void Loop::run() {
  while (!impl_->io.stopped()) run_one(std::chrono::hours(1));
}

void Loop::run_one(std::chrono::nanoseconds limit, Idle idle) {
  BusyPoller& busy_poller = impl_->busy_poller;
  if (idle == Idle::kSleep && busy_poller.empty()) return static_cast<void>(impl_->io.run_one_for(limit));
  if (impl_->found_in_memory()) return;
  if (idle == Idle::kSpin && busy_poller.busy_poll([this] { return impl_->io.poll_one() > 0; }, limit)) return;
  if (!busy_poller.prepare_to_sleep()) return static_cast<void>(busy_poller.poll_rings());
  impl_->io.run_one_for(limit);
}

std::size_t Loop::poll() {
  std::size_t count = 0;
  while (poll_one()) ++count;
  return count;
}

bool Loop::poll_one() { return impl_->found_in_memory() || impl_->io.poll_one() > 0; }

void Loop::stop() { impl_->io.stop(); }
asio::io_context& Loop::io() { return impl_->io; }
BusyPoller& Loop::busy_poller() { return impl_->busy_poller; }

void Loop::track(int fd) { impl_->tracked.insert(fd); }
void Loop::untrack(int fd) { impl_->tracked.erase(fd); }
void Loop::close_tracked() {
  for (const int fd : impl_->tracked) ::close(fd);
  impl_->tracked.clear();
}

}  // namespace shoal::runtime
