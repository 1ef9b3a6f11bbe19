// Listening sockets: they accept callers as long as there is room for their hellos.
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "runtime/core/fd.h"
#include "runtime/loop/clock.h"
#include "runtime/net/connection.h"
#include "runtime/net/socket/greeting.h"

namespace shoal::runtime {

class Loop;

// State shared by a listener and the hellos that it began.
struct Door {
  struct Greeting {
    std::shared_ptr<Line> line;
    TimePoint since;
  };
  Network::Accepted accepted;     // empty once the listener is gone
  std::list<Greeting> greeting;   // hellos under way, oldest first
  std::function<void()> goes_on;  // resumes a listener that waits for room

  // Returns how long to wait before the next connection is accepted; zero: accept it now. At most `max` connections may be in their hello.
  // To make room, closes the oldest of them that is older than `patience` and has no unread bytes.
  Duration wait_for_room(std::size_t max, TimePoint now, Duration patience);
  void ended(const std::shared_ptr<Line>& line);
  // Also ends the hellos under way.
  void close();
};

// Accepts callers from the listening socket `fd`, at `endpoint`. `room` returns how long the next caller has to wait (Door).
std::unique_ptr<Listener> make_socket_listener(Loop& loop, Clock& clock, Fd fd, Endpoint endpoint, std::shared_ptr<Door> door,
                                               std::function<Duration()> room, std::function<void(Fd)> on_socket);

// A unix socket for this host and TCP for other hosts, as one endpoint.
std::unique_ptr<Listener> make_two_listeners(std::unique_ptr<Listener> here, std::unique_ptr<Listener> elsewhere);

}  // namespace shoal::runtime
