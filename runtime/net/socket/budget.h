// Budget: what the peers of one process may take of it, each of them and all together. It counts accepted connections, the memory of
// messages that arrive, and the memory of answers that peers do not read.
//
// Small frames are not counted, so calls cost nothing here. Back-pressure comes first: a message waits for memory in its sender's socket,
// and a connection whose answers are not read takes no further requests (socket_connection.cc). A peer that keeps others waiting, or keeps
// too much, is refused with ResourceExhausted. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

class Budget final : public std::enable_shared_from_this<Budget> {
 public:
  struct Options {
    std::size_t max_connections = 32'768;                  // accepted and open; at most half of the process's descriptors
    std::uint64_t max_arriving_bytes = 256u << 20;         // messages that have begun to arrive; one at a time may be larger
    std::uint64_t max_unsent_bytes = 256u << 20;           // answers that wait for peers to read
    std::uint64_t peer_divisor = 4;                        // one peer (a process here, or another host) gets this part of each sum
    Duration patience = std::chrono::seconds(2);           // time in which a message that others wait for has to make progress
    Duration reading_patience = std::chrono::seconds(10);  // time in which a peer with too many unread answers has to read some
    std::uint64_t min_progress_bytes = 64u << 10;          // progress in that time, or a sixteenth of the message if that is more
    std::uint64_t max_progress_bytes = 4u << 20;           // but no more than this is demanded
  };
  // Smaller messages are not counted, and this much of a connection's answers is always allowed.
  static constexpr std::size_t kSmallBytes = 64 << 10;
  static constexpr std::size_t kReadBytes = 64 << 10;  // the largest read into scratch()

  // `clock` outlives the connections.
  Budget(Clock& clock, Options options);

  // The connection that an account belongs to.
  class Owner {
   public:
    virtual void on_room() = 0;              // the message that waited has its memory; not called from inside take()
    virtual void on_refused(Error why) = 0;  // the connection has to close, but not within this call
    virtual std::uint64_t received_bytes() const = 0;

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
    // Takes memory for a message that begins to arrive. Returns false if it has to wait for on_room().
    bool take(std::uint64_t bytes);
    // The message has arrived.
    void give_back() {
      if (arriving_ != 0) give_all_back();
    }
    // While set, no message waits, and any number of answers may.
    void set_urgent(bool urgent) { urgent_ = urgent; }

    // Sets the bytes of this connection's answers that wait. May call on_refused() of any connection.
    void set_unsent(std::uint64_t bytes) {
      if (bytes != unsent_) change_unsent(bytes);
    }
    // How many bytes of answers may wait before no further request is read.
    std::uint64_t allowance() const;
    bool is_beyond_allowance(std::uint64_t bytes) const { return bytes > kSmallBytes && !urgent_ && bytes > allowance(); }

    // The connection takes no further requests until its peer reads answers. Refuses the peer if it reads none within the patience.
    void set_paused(bool paused);

    // Returns all that it holds. From then on nothing waits, and nothing is counted.
    void leave();

   private:
    friend class Budget;
    struct Use {
      std::size_t connections = 0;
      std::uint64_t arriving = 0;
    };
    Account(std::shared_ptr<Budget> budget, std::uint64_t number) : budget_(std::move(budget)), number_(number) {}
    bool accepted() const { return use_ != nullptr; }
    void give_all_back();
    void change_unsent(std::uint64_t bytes);

    std::shared_ptr<Budget> budget_;
    const std::uint64_t number_;
    std::string peer_;
    Use* use_ = nullptr;  // its peer's, for an accepted connection
    Owner* owner_ = nullptr;
    bool urgent_ = false, waiting_ = false, left_ = false;
    std::uint64_t wanted_ = 0;
    std::uint64_t arriving_ = 0, unsent_ = 0;
    bool paused_ = false;
    Timer reading_;
    std::uint64_t seen_bytes_ = 0;  // received_bytes() at the last check of its progress
    bool is_fresh_ = false;         // got its memory after the last check
  };

  // The account of a connection from `peer`. Returns ResourceExhausted/TooManyConnections.
  Result<std::unique_ptr<Account>> admit(const std::string& peer);
  // The account of a connection that this process has made: it chooses by itself what it sends, and whom it asks.
  std::unique_ptr<Account> outgoing();

  // Memory for one read. Its content counts only until the next read of any connection.
  std::span<std::byte> scratch() { return scratch_; }

 private:
  bool fits(const Account& account, std::uint64_t bytes) const;
  void grant(Account& account, std::uint64_t bytes);
  void grant_waiting();
  void watch();
  void check_progress();
  void refuse_largest();

  Clock& clock_;
  const Options options_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kReadBytes);
  std::uint64_t next_number_ = 1;
  std::size_t connections_ = 0;
  std::uint64_t arriving_ = 0, unsent_ = 0;
  std::map<std::string, Account::Use> peers_;            // by peer, for accepted connections
  std::list<Account*> waiting_;                          // in the order of their messages
  std::map<std::uint64_t, Account*> arrivals_, unread_;  // accounts with messages that arrive, and with answers that wait; by number
  Timer progress_;
};

// The largest number of descriptors that this process may open.
std::size_t descriptor_limit();

}  // namespace shoal::runtime
