// The real Network: abstract unix sockets on a host, TCP where an address says so, in clear text on loopback at most.
//
// A network with TLS speaks TLS on every TCP connection; one without refuses addresses that are not loopback.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/tls.h"

namespace shoal::runtime {

class Loop;

// Between processes of one host that call each other often (Role::kWorker), frames travel through memory that both share.
struct RingOptions {
  std::size_t bytes = 256u << 10;   // for each way, a power of two from 4 KiB on; only pages that are used are there. 0: none
  std::uint32_t after_frames = 16;  // of the caller: whoever says little needs none
};

struct SocketOptions {
  FrameLimits limits;
  VersionRange versions;
  // A peer that does not read is dropped once this much waits for it.
  std::size_t max_queued_bytes = 256u << 20;
  Duration hello_timeout = std::chrono::seconds(5);
  // Hellos under way at once at one listener. Who comes then waits in the backlog, until one is done or has said nothing for a twentieth of
  // hello_timeout: that one ends. So a crowd that says nothing keeps nobody out, and of many who call at once none is turned away.
  std::size_t max_hellos = 64;
  RingOptions rings;
  // Between hosts. A payload beyond limits.max_payload_bytes travels in parts, each a frame.
  std::shared_ptr<const Tls> tls;
  std::string host;  // where other hosts reach this one: addresses there that have a unix name, too, are reached through that
  std::uint64_t max_message_bytes = 16ull << 30;
  // Bytes that the other host's kernel does not acknowledge for so long: the connection has broken. So has one to a process that was
  // stopped (SIGSTOP, a debugger) for so long with more under way than its kernel takes for it: TCP_USER_TIMEOUT knows no difference.
  Duration unanswered = std::chrono::seconds(10);
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
