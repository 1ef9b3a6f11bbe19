#include "runtime/shm/membership_page.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

#include "runtime/core/check.h"
#include "runtime/core/utf8.h"
#include "runtime/shm/spin.h"

namespace shoal::runtime {

void MembershipPage::mark_gone(std::uint32_t member, std::string_view cause) {
  SHOAL_CHECK(member < kMaxMembers, "no such member on a membership page");
  auto& m = page_->members[member];
  std::uint32_t none = 0;
  if (!m.gone.compare_exchange_strong(none, 1)) return;
  const std::string text(utf8_prefix(valid_utf8(cause), sizeof m.cause - 1));
  const std::size_t n = text.size();
  std::memcpy(m.cause, text.data(), n);
  m.cause[n] = 0;
  m.gone.store(2, std::memory_order_release);
  notify_all();
}

bool MembershipPage::is_gone(std::uint32_t member) const {
  return member < kMaxMembers && page_->members[member].gone.load(std::memory_order_acquire) == 2;
}

std::string MembershipPage::cause(std::uint32_t member) const {
  if (!is_gone(member)) return {};
  const auto& text = page_->members[member].cause;
  return {text, strnlen(text, sizeof text)};
}

int MembershipPage::first_gone(std::uint32_t num_members) const {
  for (std::uint32_t i = 0; i < std::min(num_members, kMaxMembers); ++i) {
    if (is_gone(i)) return static_cast<int>(i);
  }
  return -1;
}

void MembershipPage::notify_all() {
  // Sequentially consistent, as the load of `waiters` is: either the waiter sees the new count, or this thread sees the waiter.
  page_->bell.fetch_add(1);
  if (page_->waiters.load() > 0) syscall(SYS_futex, &page_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

MembershipPage::WaitResult MembershipPage::wait_until(const std::function<bool()>& ready, std::chrono::nanoseconds limit, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (ready()) return WaitResult::kReady;
    cpu_relax();
  }
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    page_->waiters.fetch_add(1);
    const std::uint32_t received = page_->bell.load();
    if (ready()) {
      page_->waiters.fetch_sub(1);
      return WaitResult::kReady;
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) {
      page_->waiters.fetch_sub(1);
      return WaitResult::kTimeout;
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec wait{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    syscall(SYS_futex, &page_->bell, FUTEX_WAIT, received, &wait, nullptr, 0);  // after EINTR and EAGAIN the condition is checked again
    page_->waiters.fetch_sub(1);
  }
}

}  // namespace shoal::runtime
