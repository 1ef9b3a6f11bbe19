// Connection and Network. A connection delivers frames in order or disconnects; it never loses or reorders one.
//
// Real connections are sockets, with rings in shared memory beside them (socket/socket_network.h); simulated ones are in runtime/sim. Loop
// thread only.
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

// Identity of the peer, as far as the kernel and the hello guarantee it.
struct PeerIdentity {
  Role role = Role::kClient;
  std::uint16_t version = 0;  // agreed wire version
  bool local = false;         // a unix socket: pid is from the kernel (SO_PEERCRED), descriptors can be passed
  pid_t pid = 0;
};

class ConnectionHandler {
 public:
  virtual void on_frame(Frame frame) = 0;
  // The last call: the connection sends and receives nothing any more. The handler may destroy the connection here.
  virtual void on_closed(Error why) = 0;
  // The send queue is empty again after data had to wait. Never called from inside send().
  virtual void on_drained() {}

 protected:
  ~ConnectionHandler() = default;
};

// Number of frames that a network's connections have carried, of any kind.
struct Traffic {
  std::uint64_t sent = 0;      // frames put into the send queue
  std::uint64_t received = 0;  // frames passed to the handler
};

enum class Flush {
  kNow,    // write before send() returns, as far as the kernel accepts it
  kLater,  // write in the loop's next turn, many small frames in one system call
};

class Connection {
 public:
  virtual ~Connection() = default;  // closes, without calling on_closed
  // Delivers frames to `handler` from now on. `handler` outlives the connection.
  virtual void start(ConnectionHandler& handler) = 0;
  // Never blocks, never fails: if the unsent bytes exceed the queue's bound, the connection closes with ResourceExhausted. The
  // frame must be within limits().
  virtual void send(Frame frame, Flush flush) = 0;
  // Bytes that wait in the send queue. A bulk sender stops at a mark of its own and continues in on_drained().
  virtual std::size_t queued_bytes() const = 0;
  // Delivers at once the frames that a process on this host (identity().local) has sent by now, from the kernel and the ring. Later frames
  // stay, so a peer that writes on cannot prolong the call. No effect for other hosts. May call on_closed(). Not from inside on_frame().
  virtual void read_arrived() = 0;
  virtual const PeerIdentity& identity() const = 0;
  // Limits of the peer, which would close the connection on a larger frame.
  virtual const FrameLimits& limits() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;                 // stops listening; no further call of `accepted`
  virtual const Endpoint& endpoint() const = 0;  // with the chosen port
};

class Network {
 public:
  using Accepted = std::function<void(std::unique_ptr<Connection>)>;
  using Connected = std::function<void(Result<std::unique_ptr<Connection>>)>;

  virtual ~Network() = default;
  // Calls `accepted` with connections whose hello succeeded. Returns ResourceExhausted/AddressInUse if the address is taken.
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) = 0;
  // Errors: Unavailable without a listener, the errors of the hello, DeadlineExceeded.
  virtual void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) = 0;
};

}  // namespace shoal::runtime
