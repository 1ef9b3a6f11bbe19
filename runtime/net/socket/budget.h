// Budget: what the peers of one process may take of it, each of them and all together. It counts accepted connections, the memory of
// messages that arrive, and the memory of answers that peers do not read.
//
// Small frames are not counted, so calls cost nothing here. Back-pressure comes first: a message waits for memory in its sender's socket,
// and a connection whose answers are not read takes no further requests (socket_connection.cc). A peer that keeps others waiting, or keeps
// too much, is refused with ResourceExhausted. A slow peer that makes progress is refused only if others wait for long. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

class Budget final : public std::enable_shared_from_this<Budget> {
 public:
  struct Options {
    std::size_t max_connections = 32'768;           // accepted and open; at most half of the process's descriptors
    std::uint64_t max_arriving_bytes = 256u << 20;  // messages that have begun to arrive; one at a time may be larger
    std::uint64_t max_unsent_bytes = 256u << 20;    // answers that wait for peers to read
    std::uint64_t peer_divisor = 4;                 // one peer (a process here, or another host) gets at most 1 / peer_divisor of each
    Duration patience = std::chrono::seconds(4);    // while messages wait: time in which those that arrive have to make progress
    // The bytes that have to arrive in each `patience`, from all peers together. Each peer that sends messages has to send an equal part:
    // peers may share a slow link.
    std::uint64_t min_progress_bytes = 64u << 10;
    // Once a message has waited for `waiting_patience`, the messages that hold its memory have a bounded time to arrive: `finishing_time`,
    // and a second for each `finishing_speed` bytes of the message. Messages that would be late at their peer's speed are refused early,
    // the slowest first.
    // - 30 s: in this time a peer can send its whole share to a head or node (64 MiB) at 18 Mbit/s, so few honest peers are judged.
    // - 60 s: a control message (8 MiB) arrives in time at 1.1 Mbit/s, and a peer that sends byte by byte cannot delay others for hours.
    // - 16 MiB/s: large messages arrive in time even where seven peers share 1 Gbit/s. The largest (16 GiB) gets 18 minutes.
    Duration waiting_patience = std::chrono::seconds(30);
    Duration finishing_time = std::chrono::seconds(60);
    std::uint64_t finishing_speed = 16u << 20;
    // Time in which a peer with too many unread answers has to read some. While half of max_unsent_bytes is in use, this holds for each
    // peer with unread answers. A peer may read nothing while its own memory is short, so this is longer than the waiting patience and the
    // finishing time. After a refusal for this reason, the peer's other connections have only `patience`.
    Duration reading_patience = std::chrono::seconds(120);
  };
  // Smaller messages are not counted, and this much of a connection's answers is always allowed.
  static constexpr std::size_t kSmallBytes = 64 << 10;
  static constexpr std::size_t kReadBytes = 64 << 10;  // the largest read into scratch()

  // `clock` outlives the connections.
  Budget(Clock& clock, Options options);

  // The connection that an account belongs to.
  class Owner {
   public:
    virtual void on_room() = 0;               // the message that waited has its memory; not called from inside take()
    virtual void close_later(Error why) = 0;  // refuses the peer, but calls no handler of the connection
    virtual std::uint64_t received_bytes() const = 0;
    virtual std::uint64_t taken_bytes() = 0;  // changes whenever the peer reads

   protected:
    ~Owner() = default;
  };

  // One connection's entry. Its destructor returns all that it holds.
  class Account final {
   public:
    ~Account() { leave(); }
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    void set_owner(Owner& owner) { owner_ = &owner; }
    // Takes memory for a message that begins to arrive. Returns false if it has to wait: for on_room(), or for the end of a pause.
    bool take(std::uint64_t bytes);
    bool holds_memory() const { return arriving_ != 0; }
    // The message has arrived, and keeps its memory until give_back(). Returns false if it has none.
    bool complete() { return arriving_ != 0 && (arrival_.is_complete = true); }
    // To be called once the handler has the message: returns its memory.
    void give_back() {
      if (arriving_ != 0) give_all_back();
    }
    // While set, no message waits, and any number of answers may.
    void set_urgent(bool urgent) { urgent_ = urgent; }

    // Sets the bytes of this connection's answers that wait. May call close_later() of any connection: once the sum is exceeded, the peer
    // with the most is refused. Peers that read nothing and have more than their share are refused first. An answer that waits alone may
    // exceed the bound.
    void set_unsent(std::uint64_t bytes) {
      if (bytes != unsent_) change_unsent(bytes);
    }
    // How many bytes of answers may wait before no further request is read. The answers of a peer's connections together stay within its
    // share of the sum, except those to requests that were read before.
    std::uint64_t allowance() const;
    bool is_beyond_allowance(std::uint64_t bytes) const { return bytes > kSmallBytes && !urgent_ && bytes > allowance(); }

    // The connection takes no further requests until its peer reads answers, so it gets no memory for messages. Refuses the peer if it
    // reads nothing within reading_patience.
    void set_paused(bool paused);

    // Returns all that it holds. From then on nothing waits, and nothing is counted.
    void leave();

   private:
    friend class Budget;
    struct Use {
      std::size_t connections = 0, waiting = 0;
      std::uint64_t arriving = 0, unsent = 0;
      std::uint64_t arrived = 0;       // bytes of its messages so far, as counted by count_arrived()
      std::uint64_t seen_arrived = 0;  // `arrived` when the current period began, if the peer had messages then
      std::uint64_t full_at = 0;       // the last round of grant_waiting() in which one of its messages had to wait for its share
      bool reads_nothing = false;      // a connection was refused for reading nothing, and no other one of the peer has read since
    };
    // A message that has its memory.
    struct Arrival {
      std::uint64_t begun_bytes = 0;      // received_bytes() when the message got its memory
      std::uint64_t seen_bytes = 0;       // received_bytes() when count_arrived() was called last
      bool is_unused = false;             // got the memory while it waited, and take() was not called again
      bool is_complete = false;           // has arrived; a pause keeps it from the handler
      bool is_fresh = false;              // got its memory in the current period, so its progress is not judged yet
      TimePoint watched_since{};          // if not fresh: its peer's speed counts from here
      std::uint64_t watched_arrived = 0;  // use_->arrived at that time
      std::optional<TimePoint> due;       // when it has to have arrived, while others have waited for it for too long
    };
    Account(std::shared_ptr<Budget> budget, std::uint64_t number, std::string peer, Use& use, bool accepted)
        : budget_(std::move(budget)), number_(number), peer_(std::move(peer)), use_(&use), accepted_(accepted) {}
    void give_all_back();
    void count_arrived();
    void refuse_message(const char* reason, const std::string& why);
    void change_unsent(std::uint64_t bytes);
    // True if the connection's peer has read nothing here since the last check, and has more than its share. Then it is refused first.
    bool stands_still() const;
    bool has_to_read() const { return paused_ || (unsent_ > 0 && budget_->answers_are_many(budget_->unsent_)); }
    void watch_reading();
    void check_reading();

    std::shared_ptr<Budget> budget_;
    const std::uint64_t number_;
    const std::string peer_;
    Use* use_;  // its peer's; all connections that this process has made have one in common
    const bool accepted_;
    Owner* owner_ = nullptr;
    bool urgent_ = false, waiting_ = false, left_ = false;
    std::uint64_t wanted_ = 0;
    std::list<Account*>::iterator place_;  // in waiting_, while it waits
    TimePoint waiting_since_{};
    std::uint64_t arriving_ = 0, unsent_ = 0;
    bool paused_ = false, reading_is_watched_ = false;
    Timer reading_;
    std::uint64_t taken_bytes_ = 0;  // taken_bytes() at the last check of its reading
    Arrival arrival_;
  };

  // The account of a connection from `peer`. Returns ResourceExhausted/TooManyConnections.
  Result<std::unique_ptr<Account>> admit(const std::string& peer);
  // The account of a connection that this process has made. The limits of connections, unread answers and peers' shares leave it out: this
  // process chooses its peer and its requests.
  std::unique_ptr<Account> outgoing();

  // Memory for one read. Its content counts only until the next read of any connection.
  std::span<std::byte> scratch() { return scratch_; }

 private:
  enum class Room { kFree, kPeerHasNone, kNone };
  Room room_for(const Account& account, std::uint64_t bytes) const;
  void grant(Account& account, std::uint64_t bytes);
  void wait(Account& account, std::uint64_t bytes);
  void stop_waiting(Account& account);
  void grant_waiting();
  void watch();
  void begin_period();
  void check_progress();
  std::vector<Account*> stalled() const;
  std::vector<Account*> too_slow();
  bool answers_are_many(std::uint64_t unsent) const { return unsent > options_.max_unsent_bytes / 2; }
  void refuse_worst_reader();

  Clock& clock_;
  const Options options_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kReadBytes);
  std::uint64_t next_number_ = 1;
  std::size_t connections_ = 0;
  std::uint64_t arriving_ = 0, unsent_ = 0;
  std::map<std::string, Account::Use> peers_;  // by peer, for accepted connections
  Account::Use outgoing_;
  std::list<Account*> waiting_;                          // in the order of their messages, which is that of grants
  bool first_waits_for_all_ = false;                     // a waiting message fits its peer's share, and the sum has no room for it
  std::uint64_t round_ = 0;                              // number of the last grant_waiting()
  std::map<std::uint64_t, Account*> arrivals_, unread_;  // accounts with messages that arrive, and with answers that wait; by number
  Timer progress_;
  TimePoint period_began_ = TimePoint::min();
};

// The largest number of descriptors that this process may open.
std::size_t descriptor_limit();

}  // namespace shoal::runtime
