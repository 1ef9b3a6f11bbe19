// Listening sockets: they accept callers as long as there is room for their hellos.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "runtime/core/fd.h"
#include "runtime/loop/clock.h"
#include "runtime/net/connection.h"
#include "runtime/net/socket/greeting.h"

namespace shoal::runtime {

class Loop;

// State shared by a listener and the hellos that it began.
struct Door {
  Network::Accepted accepted;     // empty once the listener is gone
  std::function<void()> goes_on;  // resumes a listener that waits for room
  // Hellos under way, by the time until which their callers have to do the next step. After that time they may be closed to make room.
  std::multimap<TimePoint, std::shared_ptr<Line>> greeting;

  // Returns how long to wait before the next connection is accepted; zero: accept it now. At most `max` connections may be in their hello.
  // To make room, closes the first hello whose time is over and whose caller has sent nothing unread. `pause`: how long to wait if all
  // callers have.
  Duration wait_for_room(std::size_t max, TimePoint now, Duration pause);
  // The caller has done a step, and has time until `until` for the next.
  void stepped(const Line& line, TimePoint until);
  void ended(const Line& line);
  // Also ends the hellos under way.
  void close();
};

// Accepts callers from the listening socket `fd`, at `endpoint`. `room` returns how long the next caller has to wait (Door).
std::unique_ptr<Listener> make_socket_listener(Loop& loop, Clock& clock, Fd fd, Endpoint endpoint, std::shared_ptr<Door> door,
                                               std::function<Duration()> room, std::function<void(Fd)> on_socket);

// A unix socket for this host and TCP for other hosts, as one endpoint.
std::unique_ptr<Listener> make_two_listeners(std::unique_ptr<Listener> local, std::unique_ptr<Listener> elsewhere);

}  // namespace shoal::runtime
