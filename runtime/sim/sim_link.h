// One simulated connection, from its first packet to its end: the hello, then frames. Private to runtime/sim.
//
// The fabric keeps a link until nothing more can arrive at either end. End 0 is the caller's, end 1 the listener's. Parcels on their way to
// an end wait in that end's queue, in order; a partition holds the queue back.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/sim/sim_clock.h"
#include "runtime/sim/sim_network.h"

namespace shoal::runtime::sim {

struct Process {
  const std::uint64_t id;
  const std::string host;
  const pid_t pid;
  const Token token;
  bool alive = true;
  std::set<std::uint64_t> links{};  // links with an end in this process
};

// A listening endpoint, owned by its Listener.
struct Listening {
  const std::shared_ptr<Process> process;
  const Endpoint endpoint;
  const Network::Accepted accepted;
};

class Link final : public std::enable_shared_from_this<Link> {
 public:
  Link(SimFabric& fabric, std::uint64_t id, std::shared_ptr<Process> caller, const Endpoint& to, Role role, Network::Connected connected);

  // Sends the first packet. Calls `connected` once, unless the caller's process ends first.
  void open(Duration timeout);

  // ---- for the connections ----
  void start(int end, ConnectionHandler& handler);
  void send(int end, Frame frame);
  void abandon(int end);  // its owner has closed the end
  void read_arrived(int end);
  std::size_t queued_bytes(int end) const { return ends_[1 - end].incoming.bytes(); }
  const FrameLimits& limits() const { return fabric_.options_.limits; }

  // ---- for the fabric ----
  bool joins(const std::string& a, const std::string& b) const;
  bool within_a_host() const { return ends_[0].host == ends_[1].host; }
  bool established() const { return ends_[0].established && ends_[1].established && !ends_[0].closed && !ends_[1].closed; }
  // Each end receives a randomly drawn part of its queue, and then the break of the connection.
  void disconnect();
  // Closes the ends of a crashed process. Abrupt: its last frames under way may be lost.
  void process_crashed(const Process& process, bool abrupt);
  // The process ends in order: closes its hellos under way without a callback.
  void process_left(const Process& process);
  // Called after a partition may have healed.
  void resume();

 private:
  enum class Kind : std::uint8_t { kOpen, kRefused, kHello, kFrame, kClose };
  struct Parcel {
    Kind kind;
    HelloMessage hello{};
    Frame frame{};
    std::optional<Error> why{};
    TimePoint due{};
    std::size_t bytes() const { return kind == Kind::kFrame ? frame.wire_bytes() : 0; }
  };
  // Parcels on their way to an end, in order.
  class Queue {
   public:
    bool empty() const { return parcels_.empty(); }
    std::size_t size() const { return parcels_.size(); }
    std::size_t bytes() const { return bytes_; }  // bytes of frames
    Parcel& front() { return parcels_.front(); }
    bool ends_with_close() const { return !empty() && parcels_.back().kind == Kind::kClose; }
    void push(Parcel parcel);
    Parcel pop();
    void keep(std::size_t count);  // drops all but the first `count` parcels
    void clear() { keep(0); }

   private:
    std::deque<Parcel> parcels_;
    std::size_t bytes_ = 0;
  };
  struct End {
    std::string host;
    std::shared_ptr<Process> process;  // null until the listener is found
    ConnectionHandler* handler = nullptr;
    bool established = false;
    bool closed = false;   // nothing arrives any more
    bool closing = false;  // a close is queued; nothing follows it
    bool held = false;     // the first parcel waits for the end of a partition
    Queue incoming;
    Timer arrival, give_up, failing, limit;
  };

  void push(int to, Parcel parcel);
  void pump(int to);
  void arrive(int to);
  void deliver(int to, Parcel parcel);
  void hold(int to);
  void gave_up(int to);
  void lose_some(int to);
  // Reports `why` to the end, unless its process is gone.
  void close(int end, const Error& why);
  void silence(int end);
  void forget_if_over();
  Error broke();  // drawn: end of stream or ECONNRESET

  void found(std::shared_ptr<Listening> listening);
  void greet_caller(const HelloMessage& answer);
  void greet_listener(const HelloMessage& message);
  void finish_connect(Result<std::unique_ptr<Connection>> result);
  std::unique_ptr<Connection> establish(int end, Role role, std::uint16_t version);

  SimFabric& fabric_;
  const std::uint64_t id_;
  const Endpoint to_;
  std::array<End, 2> ends_;
  Network::Connected connected_;
  HelloCaller caller_;
  bool answered_ = false;
  std::optional<HelloListener> listener_;
  std::weak_ptr<Listening> listening_;
};

}  // namespace shoal::runtime::sim
