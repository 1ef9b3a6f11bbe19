// A connection: frames in order, delivered or disconnected, nothing in between. And the network that makes them.
//
// Real ones are sockets, and rings in shared memory beside them (socket_network.h); simulated ones live in runtime/sim. Everything here
// belongs to the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/loop/clock.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/frame.h"
#include "runtime/net/hello.h"

namespace shoal::runtime {

// Who is at the other end, as far as the kernel and the hello vouch for it.
struct PeerIdentity {
  Role role = Role::kClient;
  std::uint16_t version = 0;  // of the wire
  bool local = false;         // a unix socket: pid is the kernel's word (SO_PEERCRED), and descriptors can be passed
  pid_t pid = 0;
};

class ConnectionHandler {
 public:
  virtual void on_frame(Frame frame) = 0;
  // The last call: the connection sends and receives nothing any more. The handler may destroy it here.
  virtual void on_closed(Error why) = 0;
  // Nothing is queued any more; before, something had to wait. Never from inside send().
  virtual void on_drained() {}

 protected:
  ~ConnectionHandler() = default;
};

// Frames that a network's connections have carried so far, whatever they meant: what a claim about messages is counted with.
struct Traffic {
  std::uint64_t sent = 0;      // given to the socket's queue
  std::uint64_t received = 0;  // given to the handler
};

enum class Flush {
  kNow,    // to the kernel before send() returns, as far as it takes it
  kLater,  // with what follows, when the loop next runs: many small frames in one system call
};

class Connection {
 public:
  virtual ~Connection() = default;  // closes, without on_closed
  // Frames arrive from now on. `handler` outlives the connection.
  virtual void start(ConnectionHandler& handler) = 0;
  // Never blocks, never fails: when more than the queue's bound is unsent, the connection closes with
  // ResourceExhausted. The frame is within limits().
  virtual void send(Frame frame, Flush flush) = 0;
  // What was sent and waits here; whoever sends in bulk stops at a mark of its own and goes on with on_drained().
  virtual std::size_t queued_bytes() const = 0;
  // Gives the handler what a process of this host (identity().local) has sent by now, as far as it lies in the kernel or in a ring, instead
  // of in a later turn of the loop; no more than that, whoever may hold the other end open and write on. Of others nothing. The handler may
  // be told that the connection is closed. Not from inside on_frame().
  virtual void read_arrived() = 0;
  virtual const PeerIdentity& identity() const = 0;
  // What the other side takes; a frame beyond it would end the connection there.
  virtual const FrameLimits& limits() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;                 // stops listening; `accepted` is not called any more
  virtual const Endpoint& endpoint() const = 0;  // with the port that was chosen
};

class Network {
 public:
  using Accepted = std::function<void(std::unique_ptr<Connection>)>;
  using Connected = std::function<void(Result<std::unique_ptr<Connection>>)>;

  virtual ~Network() = default;
  // `accepted` gets connections whose hello succeeded. ResourceExhausted/AddressInUse when somebody listens there.
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) = 0;
  // Unavailable when nobody listens; the hello's errors; DeadlineExceeded.
  virtual void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) = 0;
};

}  // namespace shoal::runtime
