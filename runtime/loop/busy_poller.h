// The sources that a loop polls before it sleeps: rings of this process's connections, and sockets to other hosts. A ring has no descriptor
// that could signal new records. On a socket, a read finds data sooner than epoll reports it.
//
// A ring is "awake" while it is polled. A loop without other work polls on for a moment (Spin). Then it asks the peers to wake it by their
// sockets from now on (prepare_to_sleep), and sleeps, so that an idle process polls nothing. Polling a socket is a system call, made only
// in that last moment. Only the thread that owns the loop calls these functions.
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
  // Called when the loop stops polling this source. Returns true if a descriptor will signal new data, false if there is work now, so that
  // polling has to go on.
  virtual bool prepare_to_sleep() = 0;

 protected:
  ~PollSource() = default;
};

class BusyPoller {
 public:
  // Polls `polled` from now on, until its prepare_to_sleep() returns true or remove() is called.
  void add_ring(std::shared_ptr<PollSource> polled);
  // Adds a socket that epoll reports as well. Polling it is a system call, so only busy_poll() does.
  void add_socket(std::shared_ptr<PollSource> polled) { sockets_.push_back(std::move(polled)); }
  void remove(const PollSource& polled);
  bool empty() const { return awake_.empty() && sockets_.empty(); }

  // Polls up to kAtOnce awake rings, continuing after the one polled last, until one had work. Returns false if none had. Sockets are
  // polled by busy_poll() only.
  bool poll_rings();
  // Polls repeatedly while that pays (Spin). Ends once something had work. `between` runs every few polls, or at each poll if there is
  // nothing to poll; when it returns true, the polling ends, too.
  template <class Between>
  bool busy_poll(Between&& between, std::chrono::nanoseconds at_most = std::chrono::nanoseconds::max()) {
    const bool memory = !awake_.empty(), sockets = !sockets_.empty() && sockets_.size() <= kFewSockets;
    if (!memory && !sockets) return between_spin_.should_spin() && between_spin_.run(between, at_most);
    Spin& spin = memory ? spin_ : socket_spin_;
    if (!spin.should_spin()) return false;
    const int every = memory ? kPollsBetween : kSocketPollsBetween;
    int num_polls = memory ? 0 : every - 1;  // a socket gets the first poll
    return spin.run(
        [&] {
          const bool due = ++num_polls % every == 0;
          return poll_rings() || (due && between()) || (sockets && (due || !memory) && poll_next_socket());
        },
        at_most);
  }
  // Called before the loop sleeps. Returns false if there is work, so that it must not sleep.
  bool prepare_to_sleep();

 private:
  static constexpr int kAtOnce = 8;  // rings polled by one poll_rings()
  static constexpr int kPollsBetween = 32;
  static constexpr int kSocketPollsBetween = 8;
  static constexpr std::size_t kFewSockets = 8;  // sockets that are polled; with more of them, epoll is as fast
  static constexpr std::size_t kFew = 16;        // awake rings; if there are more, idle ones are put to sleep one by one
  static constexpr std::uint32_t kIdlePolls = 1000;

  struct Awake {
    std::shared_ptr<PollSource> polled;
    std::uint32_t idle = 0;  // consecutive polls without work
  };
  void remove(std::size_t index);
  bool poll_next_socket();

  std::vector<Awake> awake_;
  std::size_t next_ = 0;
  Spin spin_;
  std::vector<std::shared_ptr<PollSource>> sockets_;
  std::size_t next_socket_ = 0;
  Spin socket_spin_{{.polls_per_check = 2, .polls_per_offer = 2}};
  Spin between_spin_{{.polls_per_check = 2, .polls_per_offer = 2}};
};

}  // namespace shoal::runtime
