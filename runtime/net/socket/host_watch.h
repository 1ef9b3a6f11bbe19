// HostWatch: finds out that the other host of a TCP connection is dead, because its kernel answers nothing. Loop thread only.
//
// TCP_USER_TIMEOUT does not fit: it also breaks connections to processes that do not read for that long, although their kernels answer.
#pragma once

#include <functional>

#include "runtime/loop/clock.h"

namespace shoal::runtime {

// The kernel's keep-alive probes watch an idle connection. This class watches a connection with bytes that wait for an acknowledgment, or
// for room in the peer's socket. Such a connection is broken if this kernel has sent something, or failed to send it, and no answer comes
// for the time `unanswered`. The loss of one packet breaks nothing.
//
// While the peer has room, only acknowledgments count as answers, also repeated ones. Other packets prove too little: small keep-alive
// probes arrive even where the path drops all large packets. While the peer has no room, every packet counts.
//
// While a peer does not read, the kernel asks for room again and again, after twice the time at each attempt, at most two minutes. If the
// host dies meanwhile, `unanswered` begins with the next attempt.
class HostWatch {
 public:
  // `clock` outlives the watch, and stop() precedes the end of `socket`. Calls `dead` at most once; it may call stop().
  HostWatch(Clock& clock, int socket, Duration unanswered, std::function<void()> dead);
  // Bytes were given to the kernel.
  void wrote() {
    if (!watching_) check_later();
  }
  void stop() { timer_ = {}; }

 private:
  void check_later();
  void check();

  Clock& clock_;
  const int socket_;
  const Duration unanswered_;
  const std::function<void()> dead_;
  bool watching_ = false;
  int num_silent_ = 0;  // looks in a row at which an answer was missing
  std::uint32_t arrived_ = 0;
  std::uint8_t retransmits_ = 0;  // retransmissions until the last look at which an answer had come
  TimePoint checked_at_{};
  Timer timer_;
};

}  // namespace shoal::runtime
