#include "runtime/loop/loop.h"

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <set>

#include <unistd.h>

namespace shoal::runtime {

struct Loop::Impl {
  asio::io_context io{1};  // hint: one thread at a time
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::set<int> tracked;
};

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() = default;

void Loop::post(std::function<void()> fn) { asio::post(impl_->io, std::move(fn)); }
void Loop::run() { impl_->io.run(); }
void Loop::run_one(std::chrono::nanoseconds limit) { impl_->io.run_one_for(limit); }
std::size_t Loop::poll() { return impl_->io.poll(); }
bool Loop::poll_one() { return impl_->io.poll_one() > 0; }
void Loop::stop() { impl_->io.stop(); }
asio::io_context& Loop::io() { return impl_->io; }

void Loop::track(int fd) { impl_->tracked.insert(fd); }
void Loop::untrack(int fd) { impl_->tracked.erase(fd); }
void Loop::close_tracked() {
  for (const int fd : impl_->tracked) ::close(fd);
  impl_->tracked.clear();
}

}  // namespace shoal::runtime
