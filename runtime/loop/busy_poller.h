// A loop polls its BusyPoller before it sleeps: rings of this process's connections, and sockets to other hosts. Rings have no descriptor
// to signal new records; a read finds data on a socket sooner than epoll reports it.
//
// The loop polls a ring while it is in use. An idle loop polls on for a moment (Spin), asks the peers to wake it through their
// sockets from now on (prepare_to_sleep), and sleeps. So an idle process polls nothing. Polling a socket is a system call, made only in the
// moment before the sleep. Only the loop's owner calls these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/shm/spin.h"

namespace shoal::runtime {

class PollSource {
 public:
  // Does a bounded piece of the pending work; returns false if there was none.
  virtual bool poll() = 0;
  // The loop stops polling. True: a descriptor will signal new data. False: there is work now, keep polling.
  virtual bool prepare_to_sleep() = 0;

 protected:
  ~PollSource() = default;
};

class BusyPoller {
 public:
  // Polls `polled` until it prepares to sleep or remove() is called.
  void look_at(std::shared_ptr<PollSource> polled);
  // Adds a socket that epoll reports as well. Polling it is a system call, so only busy_poll() does.
  void add_socket(std::shared_ptr<PollSource> polled) { sockets_.push_back(std::move(polled)); }
  void remove(const PollSource& polled);
  bool empty() const { return awake_.empty() && sockets_.empty(); }

  // Polls some of them in turn until one had work; returns false if none had.
  bool look();
  // Polls repeatedly while that pays (Spin). `between` runs every few looks, or at each look if there is nothing to poll; its success
  // ends the polling as well.
  template <class Between>
  bool busy_poll(Between&& between, std::chrono::nanoseconds at_most = std::chrono::nanoseconds::max()) {
    const bool memory = !awake_.empty(), sockets = !sockets_.empty() && sockets_.size() <= kFewSockets;
    if (!memory && !sockets) return between_spin_.should_spin() && between_spin_.run(between, at_most);
    Spin& spin = memory ? spin_ : socket_spin_;
    if (!spin.should_spin()) return false;
    const int every = memory ? kLooksBetween : kSocketLooksBetween;
    int looks = memory ? 0 : every - 1;  // a socket gets the first look
    return spin.run(
        [&] {
          const bool due = ++looks % every == 0;
          return look() || (due && between()) || (sockets && (due || !memory) && poll_next_socket());
        },
        at_most);
  }
  // Called before the loop sleeps. False: there is work, so it must not sleep.
  bool prepare_to_sleep();

 private:
  static constexpr int kAtOnce = 8;  // polled by one look()
  static constexpr int kLooksBetween = 32;
  static constexpr int kSocketLooksBetween = 8;
  static constexpr std::size_t kFewSockets = 8;  // with more, epoll reports as soon
  static constexpr std::size_t kFew = 16;        // awake ones; beyond that, idle ones are put to sleep one by one
  static constexpr std::uint32_t kIdleLooks = 1000;

  struct Awake {
    std::shared_ptr<PollSource> polled;
    std::uint32_t idle = 0;  // consecutive looks without work
  };
  void remove(std::size_t index);
  bool poll_next_socket();

  std::vector<Awake> awake_;
  std::size_t next_ = 0;
  Spin spin_;
  std::vector<std::shared_ptr<PollSource>> sockets_;
  std::size_t next_socket_ = 0;
  Spin socket_spin_{{.looks = 2, .looks_between = 2}};
  Spin between_spin_{{.looks = 2, .looks_between = 2}};
};

}  // namespace shoal::runtime
