// The sockets of a layer that may advance, by edge-triggered epoll: a socket that had nothing left is served again only after an event.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/owner_process.h"
#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

// An object with a socket. Its flags state which calls the socket can take without blocking; advance() clears them.
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
  // Call it before the socket gets another owner.
  void remove(int socket);
  // Call it before the pollable ends and its socket is closed. While a forked child also holds the socket, epoll still reports it after it
  // was closed here.
  void forget(int socket, Pollable& pollable);
  // Makes it advance in the next turn, without an event.
  void queue(Pollable& pollable);
  // Queues the pollables with events. If nothing is queued, it waits for events, at most `limit`; wake() ends the wait.
  void poll(Duration limit);
  void advance_queued();
  bool has_queued() const { return !queued_.empty(); }
  void wake();  // any thread

 private:
  const OwnerProcess process_;
  Fd epoll_, wake_;
  std::vector<Pollable*> queued_, turn_;
};

}  // namespace shoal::runtime
