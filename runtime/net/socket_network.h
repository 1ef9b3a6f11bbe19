// The real Network: abstract unix sockets on a host, TCP where an address says so.
#pragma once

#include <memory>

#include "runtime/net/connection.h"

namespace shoal::runtime {

class Loop;

struct SocketOptions {
  FrameLimits limits;
  VersionRange versions;
  // A peer that does not read is dropped once this much waits for it.
  std::size_t max_queued_bytes = 256u << 20;
  Duration hello_timeout = std::chrono::seconds(5);
  // Hellos under way at once at one listener. The next one ends the oldest, which a caller that means it never is: a crowd that says
  // nothing keeps nobody out.
  std::size_t max_hellos = 64;
};

// `clock` and `random` outlive the network; the network outlives its listeners, not its connections.
class SocketNetwork final : public Network {
 public:
  SocketNetwork(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options);
  ~SocketNetwork() override;  // stop() has drained it

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) override;
  void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) override;

  // Of all connections that this network made, closed ones included.
  const Traffic& traffic() const;

  // Ends hellos and accepts under way; `drained` is called when none is left.
  void stop(std::function<void()> drained);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::runtime
