// The real Network: abstract unix sockets within a host, TCP for addresses with a port; clear text on loopback only.
//
// A network with TLS speaks TLS on every TCP connection; one without TLS refuses addresses beyond loopback.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/ring/ring_connection.h"
#include "runtime/net/socket/budget.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

class Loop;

struct SocketOptions {
  FrameLimits limits;
  VersionRange versions;
  // The connection closes once more than this waits for a peer that does not read.
  std::size_t max_queued_bytes = 256u << 20;
  Budget::Options budget;  // bounds for all peers together, and for each of them
  Duration hello_timeout = std::chrono::seconds(5);
  // Limit of concurrent hellos per listener, and of a sixteenth of the process's descriptors. Further callers wait in the backlog until a
  // hello completes, or one that has sent nothing for `hello_patience` is closed. A caller that has done a step of the TLS handshake has
  // `step_patience` for the next, enough for a link between continents. So others delay no caller by more than half a second, and no
  // caller of a burst is refused.
  std::size_t max_hellos = 1024;
  Duration hello_patience = std::chrono::milliseconds(100);
  Duration step_patience = std::chrono::milliseconds(250);
  RingOptions rings;
  // For connections between hosts. A payload beyond limits.max_payload_bytes travels in parts, each a frame.
  std::shared_ptr<const Tls> tls;
  std::string host;  // this host's address for others; an endpoint here that has a unix name is reached by that name
  std::uint64_t max_message_bytes = 16ull << 30;
  // A connection breaks when the other host's kernel answers nothing for this long (host_watch.h). A connection to a
  // process that does not read stays, so that messages may wait for memory there.
  Duration unanswered = std::chrono::seconds(10);
};

// `clock` and `random` outlive the network; the network outlives its listeners, but connections may outlive it.
class SocketNetwork final : public Network {
 public:
  SocketNetwork(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options);
  ~SocketNetwork() override;  // only after stop() has drained it

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) override;
  void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) override;

  // Traffic of all connections that this network made, closed ones included.
  const Traffic& traffic() const;

  // Cancels hellos and accepts under way; calls `drained` when none is left.
  void stop(std::function<void()> drained);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::runtime
