// What a loop looks at before it sleeps: the rings of this process's connections, of whose news no descriptor tells, and sockets to other
// hosts, which epoll tells of later than they could be read.
//
// A ring is looked at while it is in use. When the loop has nothing to do it looks on for a moment (Spin), tells the other ends to wake it
// through their sockets from now on (doze), and sleeps. So a process that does nothing looks at nothing. A look at a socket is a system
// call: it is made only in that moment before the sleep. The loop's owner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/shm/spin.h"

namespace shoal::runtime {

class Polled {
 public:
  // Does a bounded piece of what there is to do; false if there was nothing.
  virtual bool poll() = 0;
  // The loop looks away. True: a descriptor will tell of news. False: there is something to do now.
  virtual bool doze() = 0;

 protected:
  ~Polled() = default;
};

class Lookout {
 public:
  // `polled` is looked at until it dozes, or look_away().
  void look_at(std::shared_ptr<Polled> polled);
  // One that epoll tells of, too, and that costs a system call to look at: only look_long() does.
  void look_at_socket(std::shared_ptr<Polled> polled) { sockets_.push_back(std::move(polled)); }
  void look_away(const Polled& polled);
  bool empty() const { return awake_.empty() && sockets_.empty(); }

  // Polls some of them, each in its turn, until one had something to do; false if none had.
  bool look();
  // The same, again and again for as long as that is worth it; `between` runs now and then, each time where there is nothing else to look
  // at, and ends it likewise.
  template <class Between>
  bool look_long(Between&& between, std::chrono::nanoseconds at_most = std::chrono::nanoseconds::max()) {
    const bool memory = !awake_.empty(), sockets = !sockets_.empty() && sockets_.size() <= kFewSockets;
    if (!memory && !sockets) return between_spin_.worth() && between_spin_.run(between, at_most);
    Spin& spin = memory ? spin_ : socket_spin_;
    if (!spin.worth()) return false;
    const int every = memory ? kLooksBetween : kSocketLooksBetween;
    int looks = memory ? 0 : every - 1;  // nothing was looked at before a socket
    return spin.run(
        [&] {
          const bool due = ++looks % every == 0;
          return look() || (due && between()) || (sockets && (due || !memory) && look_at_next_socket());
        },
        at_most);
  }
  // Before the loop sleeps. False: it is not to sleep.
  bool doze();

 private:
  static constexpr int kAtOnce = 8;  // looked at by one look()
  static constexpr int kLooksBetween = 32;
  static constexpr int kSocketLooksBetween = 8;
  static constexpr std::size_t kFewSockets = 8;  // of more of them epoll tells as soon
  static constexpr std::size_t kFew = 16;        // awake ones, among which none is sent to sleep for itself
  static constexpr std::uint32_t kIdleLooks = 1000;

  struct Awake {
    std::shared_ptr<Polled> polled;
    std::uint32_t idle = 0;  // looks in vain, one after the other
  };
  void remove(std::size_t index);
  bool look_at_next_socket();

  std::vector<Awake> awake_;
  std::size_t next_ = 0;
  Spin spin_;
  std::vector<std::shared_ptr<Polled>> sockets_;
  std::size_t next_socket_ = 0;
  Spin socket_spin_{{.looks = 2, .looks_between = 2}};
  Spin between_spin_{{.looks = 2, .looks_between = 2}};
};

}  // namespace shoal::runtime
