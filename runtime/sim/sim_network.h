// The simulated network: one fabric between many hosts, and a Network for each process on a host.
//
// Connections run the real hello and carry frames with random delays. A connection delivers in order or disconnects; it never skips,
// reorders or doubles a frame. Faults are those of TCP: delay, disconnect at any frame, crashes, one-way or full partitions. In a
// partition frames wait as if retransmitted, and connects time out. Draws come from the world's Random in the order of events. Loop
// thread only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/loop/random.h"
#include "runtime/net/connection.h"

namespace shoal::runtime {

class SimClock;
class Trace;

struct SimDelays {
  Duration least = std::chrono::microseconds(50);  // minimum for a frame between hosts; a tenth inside a host
  Duration most = std::chrono::milliseconds(2);
  Duration slow = std::chrono::milliseconds(300);  // maximum for a frame that was lost and sent again
  std::uint32_t slow_per_mille = 0;
};

struct SimNetworkOptions {
  SimDelays delays{};
  // Probability that a connection with waiting frames is broken when its partition heals; otherwise all frames arrive.
  std::uint32_t broken_by_partition_per_mille = 500;
  // After this time with a waiting frame, the sender's connection breaks.
  Duration give_up = std::chrono::minutes(15);
  Duration hello_timeout = std::chrono::seconds(5);
  FrameLimits limits{};
  VersionRange versions{};
  std::size_t max_queued_bytes = 256u << 20;  // limit under way per direction, beyond which the connection closes
};

namespace sim {
class Link;
struct Process;
struct Listening;
}  // namespace sim

class SimNetwork;

// `clock`, `random` and `trace` outlive the fabric; the fabric outlives all networks, listeners and connections.
class SimFabric {
 public:
  SimFabric(SimClock& clock, Random& random, Trace& trace, const Token& token, SimNetworkOptions options);
  ~SimFabric();  // CHECKs that no process is attached
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // Returns the network of a new process on `host`. TCP endpoints name hosts; abstract unix names belong to their host.
  std::unique_ptr<SimNetwork> attach(const std::string& host, pid_t pid);
  // As attach() above, for a process with another token.
  std::unique_ptr<SimNetwork> attach(const std::string& host, pid_t pid, const Token& token);

  // ---- faults ----
  void set_delays(const SimDelays& delays) { options_.delays = delays; }
  void set_partitions(std::uint32_t broken_per_mille, Duration give_up) {
    options_.broken_by_partition_per_mille = broken_per_mille;
    options_.give_up = give_up;
  }
  // Stops all traffic in one direction between two hosts.
  void cut(const std::string& from, const std::string& to);
  void partition(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);
  void heal();  // heals all partitions
  // Breaks connections: both sides lose the last frames under way, and then get on_closed.
  std::size_t disconnect(const std::string& a, const std::string& b);  // all between two hosts; returns their number
  bool disconnect_any();                                               // a randomly drawn one between different hosts; false: none exists
  // Crashes every process of the host at once (SimNetwork::crash). Connects to it get no answer until a process attaches there.
  void crash(const std::string& host);

  // Number of connections that are open or under way at one end at least.
  std::size_t num_links() const { return links_.size(); }

 private:
  friend class SimNetwork;
  friend class sim::Link;

  bool reaches(const std::string& from, const std::string& to) const { return !cuts_.contains({from, to}); }
  Duration delay(const std::string& from, const std::string& to);
  std::shared_ptr<sim::Listening> listening(const std::string& caller_host, const Endpoint& at) const;
  Result<std::unique_ptr<Listener>> listen(const std::shared_ptr<sim::Process>& process, const Endpoint& endpoint,
                                           Network::Accepted accepted);
  void connect(const std::shared_ptr<sim::Process>& process, const Endpoint& endpoint, Role role, Duration timeout,
               Network::Connected connected);
  void crash(sim::Process& process, bool abrupt);
  void leave(sim::Process& process);
  std::vector<std::shared_ptr<sim::Link>> links_of(const sim::Process& process) const;
  void resume();
  void forget(std::uint64_t link) { links_.erase(link); }

  SimClock& clock_;
  Random& random_;
  Trace& trace_;
  const Token token_;
  SimNetworkOptions options_;
  std::set<std::pair<std::string, std::string>> cuts_;  // pairs (from, to)
  std::set<std::string> down_;                          // hosts that crashed
  std::map<std::uint64_t, std::shared_ptr<sim::Link>> links_;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<sim::Listening>> listening_;  // by host and endpoint
  std::size_t sweep_at_ = 16;  // size of listening_ at which expired entries are removed
  std::map<std::uint64_t, std::shared_ptr<sim::Process>> processes_;
  std::uint64_t next_ = 1;
  std::uint16_t next_port_ = 20'000;
};

class SimNetwork final : public Network {
 public:
  ~SimNetwork() override;  // ends hellos under way; connections remain

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) override;
  void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) override;

  // Ends the process as by SIGKILL: frames that it sent before still arrive, and its connections close at the other side (or hang
  // while partitioned). Later actions of its objects, their destructors included, have no effect on other processes.
  void crash();

  const std::string& host() const;
  pid_t pid() const;

 private:
  friend class SimFabric;
  SimNetwork(SimFabric& fabric, std::shared_ptr<sim::Process> process) : fabric_(fabric), process_(std::move(process)) {}
  SimFabric& fabric_;
  const std::shared_ptr<sim::Process> process_;
};

}  // namespace shoal::runtime
