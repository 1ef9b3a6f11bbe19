// The sockets of a layer that may advance, by edge-triggered epoll: a socket is looked at again only after it had nothing left.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

// Something with a socket. Its flags state what the socket may do without blocking; advance() clears them.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual void advance() = 0;

  bool readable = false, writable = false;
  bool hung_up = false;  // the other side closed it; bytes may be left to read

 private:
  friend class Poller;
  bool queued_ = false;
};

class Poller {
 public:
  Result<void> open();
  void add(int socket, Pollable& pollable);
  // Before the socket gets another owner.
  void remove(int socket);
  // Call it before the pollable ends and its socket is closed. While a forked child holds the socket too, epoll reports a closed one.
  void forget(int socket, Pollable& pollable);
  // Lets it advance in the next turn, without an event.
  void queue(Pollable& pollable);
  // Queues what has events, and waits for them at most `limit` if nothing is queued. wake() ends the wait.
  void poll(Duration limit);
  void advance_queued();
  bool has_queued() const { return !queued_.empty(); }
  void wake();  // any thread

 private:
  const pid_t pid_ = getpid();
  Fd epoll_, wake_;
  std::vector<Pollable*> queued_, turn_;
};

}  // namespace shoal::runtime
