// The simulated network: one fabric between many hosts, and the Network that each process on a host sees.
//
// Connections run the real hello and carry frames with drawn delays, in order; a connection delivers or disconnects, it
// never skips, reorders or doubles a frame. Faults are those that TCP shows: delay, disconnect at any frame, one-way or
// full partitions (silent: frames wait as if retransmitted, connects time out), crashes. Draws come from the world's
// Random in the order of events. Loop thread only.
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
  Duration least = std::chrono::microseconds(50);  // of a frame between hosts; inside a host a tenth
  Duration most = std::chrono::milliseconds(2);
  Duration slow = std::chrono::milliseconds(300);  // at most, of a frame that was lost and sent again
  std::uint32_t slow_per_mille = 0;
};

struct SimNetworkOptions {
  SimDelays delays{};
  // A connection that held frames back when its partition heals: broken, or all of them arrive.
  std::uint32_t broken_by_partition_per_mille = 500;
  // The sender of a frame that could not cross for so long is told that its connection broke.
  Duration give_up = std::chrono::minutes(15);
  Duration hello_timeout = std::chrono::seconds(5);
  FrameLimits limits{};
  VersionRange versions{};
  std::size_t max_queued_bytes = 256u << 20;  // on their way in one direction; more closes the connection
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
  ~SimFabric();  // CHECKs that no process is attached any more
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // The network as a new process on `host` sees it. TCP endpoints name hosts; abstract unix names belong to their host.
  std::unique_ptr<SimNetwork> attach(const std::string& host, pid_t pid);
  // The same for a process that knows another token.
  std::unique_ptr<SimNetwork> attach(const std::string& host, pid_t pid, const Token& token);

  // ---- faults ----
  void set_delays(const SimDelays& delays) { options_.delays = delays; }
  void set_partitions(std::uint32_t broken_per_mille, Duration give_up) {
    options_.broken_by_partition_per_mille = broken_per_mille;
    options_.give_up = give_up;
  }
  // Nothing gets from one host to the other.
  void cut(const std::string& from, const std::string& to);
  void partition(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);
  void heal();  // everywhere
  // Both sides lose what is on its way from some frame on, and then hear of it.
  std::size_t disconnect(const std::string& a, const std::string& b);  // all between two hosts; returns how many
  bool disconnect_any();                                               // one between different hosts, drawn; false: there is none
  // Every process of the host is gone at once (SimNetwork::crash), connections to it are not answered until a process
  // is attached to it again.
  void crash(const std::string& host);

  // Connections that are open or on their way, at one end at least.
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
  std::set<std::pair<std::string, std::string>> cuts_;  // from, to
  std::set<std::string> down_;                          // hosts that crashed
  std::map<std::uint64_t, std::shared_ptr<sim::Link>> links_;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<sim::Listening>> listening_;  // host, endpoint
  std::size_t sweep_at_ = 16;  // entries, for those that listen no more to be taken out
  std::map<std::uint64_t, std::shared_ptr<sim::Process>> processes_;
  std::uint64_t next_ = 1;
  std::uint16_t next_port_ = 20'000;
};

class SimNetwork final : public Network {
 public:
  ~SimNetwork() override;  // ends hellos under way; connections stay

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, Accepted accepted) override;
  void connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) override;

  // The process is gone, as by SIGKILL: what it sent before still arrives, its connections close at the other side (or
  // hang while partitioned), and nothing that its objects do from now on, their destructors included, reaches anybody.
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
