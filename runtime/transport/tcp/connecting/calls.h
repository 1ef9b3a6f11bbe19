// Connections before their introduction is complete: those that this rank makes, and those that it accepts.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "runtime/transport/tcp/connecting/introduction.h"
#include "runtime/transport/tcp/connecting/rank_address.h"
#include "runtime/transport/tcp/sockets/byte_stream.h"
#include "runtime/transport/tcp/sockets/poller.h"

namespace shoal::runtime {

// A connection that this rank makes: TCP, TLS, its introduction, the welcome.
class OutgoingCall final : public Pollable {
 public:
  // kHungUp: another attempt may succeed.
  enum class State { kConnecting, kSecuring, kIntroducing, kWaiting, kWelcome, kLate, kHungUp, kFailed };

  OutgoingCall(Poller& poller, const RankAddress& from, const RankAddress& to, std::shared_ptr<const Tls> tls,
               const Introduction& introduction);
  ~OutgoingCall() override { poller_.forget(stream_ ? stream_->socket() : -1, *this); }
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  void advance() override;
  State state() const { return state_; }
  bool over() const { return state_ >= State::kWelcome; }
  const Introduction& introduction() const { return introduction_; }
  const Error& why() const { return why_; }  // after kHungUp or kFailed
  ByteStream take();                         // after kWelcome

 private:
  void start(const RankAddress& from);
  void fail(Error why);
  void connected();
  void read_welcome();

  Poller& poller_;
  const RankAddress to_;
  const Introduction introduction_;
  State state_ = State::kConnecting;
  std::optional<ByteStream> stream_;
  const std::shared_ptr<const Tls> tls_;
  Welcome::Message welcome_{};
  std::size_t bytes_ = 0;
  Error why_ = unavailable("");
};

// The listening socket, and the callers that have not introduced themselves. The number of these callers and their time are bounded; a
// stranger's connection is closed without an answer.
class Gate final : public Pollable {
 public:
  static constexpr std::size_t kMaxCallers = 64;
  static constexpr Duration kPatience = std::chrono::milliseconds(250);  // for a silent caller while others wait
  static constexpr Duration kLimit = std::chrono::seconds(10);           // for any caller to introduce itself

  struct Guest {
    ByteStream stream;
    Introduction introduction;
  };

  Gate(Poller& poller, std::shared_ptr<const Tls> tls);
  ~Gate() override;
  // Listens at `address`, whose port it sets.
  Result<void> open(RankAddress& address);

  void advance() override;  // accepts callers
  // Closes callers beyond their limit, and accepts others in their place.
  void tidy(TimePoint now);
  // Returns the callers that have introduced themselves since the last call.
  std::vector<Guest> take_guests();
  std::size_t num_callers() const { return callers_.size(); }
  // The reason why it accepts no callers now; nullopt if it does.
  const std::optional<Error>& obstacle() const { return obstacle_; }

 private:
  class Caller;
  bool make_room(TimePoint now);

  Poller& poller_;
  const std::shared_ptr<const Tls> tls_;
  Token token_;
  Fd socket_;
  std::optional<Error> obstacle_;
  std::list<std::unique_ptr<Caller>> callers_;  // oldest first
};

}  // namespace shoal::runtime
