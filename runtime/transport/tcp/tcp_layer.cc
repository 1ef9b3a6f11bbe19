#include "runtime/transport/tcp/tcp_layer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "runtime/net/interfaces.h"
#include "runtime/transport/tcp/connecting/calls.h"
#include "runtime/transport/tcp/peer.h"

namespace shoal::runtime {

namespace {

constexpr auto kCheck = std::chrono::milliseconds(100);  // interval of the checks for silent hosts
constexpr auto kPause = 3 * kCheck;                      // after a longer time without a check, the next one finds no host silent
constexpr int kSilentChecks = 2;                         // in a row that find a host silent; it is then lost
constexpr auto kGrace = std::chrono::milliseconds(100);  // after a connection breaks: in this time the watch connection may show why
constexpr auto kDeparture = std::chrono::seconds(1);     // for the group to learn why a rank has begun another epoch
constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr auto kFlushPoll = std::chrono::milliseconds(1);
constexpr int kMaxAttempts = 40;  // to make a connection that the other rank closes before its welcome

TimePoint now() { return std::chrono::steady_clock::now(); }

class TcpLayer final : public MessageLayer, private ConnectionEvents {
 public:
  explicit TcpLayer(TcpOptions options)
      : options_(std::move(options)),
        plan_(static_cast<std::uint32_t>(options_.connections)),
        random_(make_real_random()),
        gate_(poller_, options_.tls) {}
  ~TcpLayer() override = default;

  Result<void> open();

  const char* name() const override { return options_.tls ? "tls" : "tcp"; }
  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) override {
    if (forked()) return refuse(transfer);
    at(to).connections->send(channel, data, transfer);
  }
  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) override {
    if (forked()) return refuse(transfer);
    at(from).connections->receive(channel, data, transfer);
  }
  bool progress() override;
  void wait(Duration limit) override;
  void wake() override {
    if (!forked()) poller_.wake();  // the child shares the parent's event
  }
  std::optional<Error> lost(int rank) const override { return others_[static_cast<std::size_t>(rank)].lost; }
  void flush(Duration limit) override;
  void reset(std::span<const int> gone) override;
  void begin_epoch() override;

 private:
  struct Other {
    std::unique_ptr<Peer> connections;  // null for this rank
    std::optional<Error> lost;
    std::optional<TimePoint> broken_since, departed_since;
    std::optional<Error> broken;
    int num_silent = 0;  // checks in a row that found its host silent
  };
  struct Calling {
    std::unique_ptr<OutgoingCall> call;
    int rank;
    TimePoint since;
    int attempts = 1;
    std::optional<TimePoint> again_at;
  };

  // True in a child that was forked from the rank's process. It only closes its copies of the descriptors.
  bool forked() const { return process_.forked(); }
  static void refuse(Transfer& transfer) { transfer.state = Transfer::State::kFailed; }
  Other& at(int rank) { return others_[static_cast<std::size_t>(rank)]; }
  void transfer_ended() override { ++num_ended_; }
  void broke(int rank, const Error& why) override;
  void ended(int rank, const Error& why) override;
  void departed(int rank) override;

  Result<void> wait_for_connections();
  Result<void> lost_while_connecting();
  std::string which(int rank);
  void call_all(int rank);
  std::unique_ptr<OutgoingCall> call(int rank, std::uint32_t number);
  void lose(int rank, Error why);
  void meet_guests();
  void admit(Gate::Guest guest);
  void follow_calls();
  bool concluded(Calling& calling);
  void check();

  const OwnerProcess process_;
  const TcpOptions options_;
  const ConnectionPlan plan_;
  const std::unique_ptr<Random> random_;
  Poller poller_;  // outlives what it polls
  Gate gate_;
  RankAddress own_;
  std::vector<Other> others_;
  std::vector<int> to_call_;  // in the next progress(), not in reset(): a layer may be reset because it ends
  std::list<Calling> calls_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Gate::Guest> early_;  // by rank and number: connections of an epoch to come
  std::uint32_t epoch_ = 1, connected_epoch_ = 1;  // the second one is the connections' epoch: begin_epoch() keeps them
  std::uint64_t num_ended_ = 0;
  TimePoint check_at_{}, checked_at_{};
  bool polled_ = false;
};

Result<void> TcpLayer::open() {
  SHOAL_OK(poller_.open());
  SHOAL_TRY(const auto interface, find_interface(options_.interface));
  own_.host = interface.address;
  own_.token = Token::random(*random_);
  SHOAL_OK(gate_.open(own_));
  SHOAL_TRY(const auto all, options_.exchange(own_.text()));
  if (all.size() != static_cast<std::size_t>(options_.world_size))
    return fail(invalid_argument(fmt::format("{} addresses of {} ranks", all.size(), options_.world_size)));
  others_.resize(all.size());
  for (int r = 0; r < options_.world_size; ++r) {
    if (r == options_.rank) continue;
    SHOAL_TRY(auto address, RankAddress::parse(all[static_cast<std::size_t>(r)], r));
    at(r).connections = std::make_unique<Peer>(Connection::Place{poller_, *this, r}, plan_, std::move(address), options_.piece_bytes);
  }
  for (int r = 0; r < options_.world_size; ++r) {
    if (r != options_.rank) to_call_.push_back(r);
  }
  return wait_for_connections();
}

Result<void> TcpLayer::wait_for_connections() {
  const auto until = now() + options_.connecting;
  auto check_at = now() + kCheck;
  for (int r = 0; r < options_.world_size; ++r) {
    if (r == options_.rank) continue;
    while (!at(r).connections->complete()) {
      progress();
      SHOAL_OK(lost_while_connecting());
      if (at(r).connections->complete()) break;
      const auto time = now();
      if (options_.may_go_on && time >= check_at) {
        check_at = time + kCheck;
        if (auto goes_on = options_.may_go_on(); !goes_on) return fail(Error(goes_on.error()).in("connecting to " + which(r)));
      }
      if (time > until && gate_.obstacle()) return fail(Error(*gate_.obstacle()).in("waiting for " + which(r)));
      if (time > until) {
        return fail(deadline_exceeded(fmt::format("{} and {} could not connect", which(r), own_.host))
                        .with_reason("NotConnected")
                        .with_hint("check the interface of both hosts, and that no firewall drops connections between them"));
      }
      wait(kCheck);
    }
  }
  return {};
}

// The end of any rank ends the wait for all ranks: a rank that has not connected yet may itself wait for the lost one.
Result<void> TcpLayer::lost_while_connecting() {
  for (int r = 0; r < options_.world_size; ++r) {
    if (at(r).lost) return fail(Error(*at(r).lost).in("connecting to " + which(r)));
  }
  return {};
}

std::string TcpLayer::which(int rank) {
  const auto& address = at(rank).connections->address();
  return fmt::format("rank {} at {} port {}", rank, address.host, address.port);
}

// ---- connections -------------------------------------------------------------------------------------------------------------------

std::unique_ptr<OutgoingCall> TcpLayer::call(int rank, std::uint32_t number) {
  Introduction introduction;
  introduction.caller = static_cast<std::uint32_t>(options_.rank);
  introduction.called = static_cast<std::uint32_t>(rank);
  introduction.number = number;
  introduction.epoch = connected_epoch_;
  introduction.nonce = {random_->next(), random_->next()};
  return std::make_unique<OutgoingCall>(poller_, own_, at(rank).connections->address(), options_.tls, introduction);
}

void TcpLayer::call_all(int rank) {
  for (std::uint32_t number = 0; number < plan_.size(); ++number) {
    if (ConnectionPlan::is_opened_by(number, options_.rank, rank)) calls_.push_back({call(rank, number), rank, now(), 1, std::nullopt});
  }
}

void TcpLayer::follow_calls() {
  for (auto it = calls_.begin(); it != calls_.end();) {
    const bool over = at(it->rank).lost || (it->call->over() && concluded(*it));
    it = over ? calls_.erase(it) : std::next(it);
  }
}

// Returns true if the connection is made, or will not be.
bool TcpLayer::concluded(Calling& calling) {
  using State = OutgoingCall::State;
  auto& peer = at(calling.rank);
  const auto& introduction = calling.call->introduction();
  switch (calling.call->state()) {
    case State::kWelcome:
      peer.connections->install(introduction.number, calling.call->take(), epoch_);
      return true;
    case State::kLate:
      departed(calling.rank);
      return true;
    case State::kHungUp:
      // The other rank has reached its limit for callers, or has ended; in the latter case the next attempt is refused.
      if (!calling.again_at) calling.again_at = now() + kRetry;
      if (now() < *calling.again_at) return false;
      if (calling.attempts == kMaxAttempts) break;
      ++calling.attempts;
      calling.again_at.reset();
      calling.since = now();
      calling.call = call(calling.rank, introduction.number);
      return false;
    default:
      break;
  }
  lose(calling.rank, calling.call->why());
  return true;
}

void TcpLayer::meet_guests() {
  if (gate_.num_callers() == 0) return;
  for (auto& guest : gate_.take_guests()) admit(std::move(guest));
  if (gate_.readable && gate_.num_callers() < Gate::kMaxCallers) poller_.queue(gate_);  // there is room again
}

void TcpLayer::admit(Gate::Guest guest) {
  const auto& said = guest.introduction;
  const auto self = static_cast<std::uint32_t>(options_.rank);
  if (said.called != self || said.caller == self || said.caller >= others_.size() || said.number >= plan_.size()) return;
  const int rank = static_cast<int>(said.caller);
  auto& other = at(rank);
  if (!ConnectionPlan::is_opened_by(said.number, rank, options_.rank) || !other.connections) return;
  if (static_cast<std::int32_t>(said.epoch - connected_epoch_) > 0) {
    const auto key = std::pair(said.caller, said.number);
    early_.erase(key);
    early_.emplace(key, std::move(guest));
    return;
  }
  const bool late = said.epoch != connected_epoch_;
  if (!late && (other.lost || other.connections->has(said.number))) return;
  const auto verdict = late ? Welcome::Verdict::kLate : Welcome::Verdict::kWelcome;
  const auto message = Welcome::encode(verdict, said, own_.token, guest.stream.binding());
  const auto sent = guest.stream.write(message, {});
  if (sent && sent->bytes == message.size() && !late) other.connections->install(said.number, std::move(guest.stream), epoch_);
}

// ---- the end of other ranks --------------------------------------------------------------------------------------------------------

void TcpLayer::lose(int rank, Error why) {
  auto& other = at(rank);
  if (other.lost) return;
  other.lost = unavailable(fmt::format("the connections to {} have ended: {}", other.connections->address().host, why.message()))
                   .with_reason(why.reason().empty() ? "Disconnected" : why.reason());
  other.connections->refuse_sends();
}

void TcpLayer::broke(int rank, const Error& why) {
  auto& other = at(rank);
  if (other.broken_since) return;
  other.broken_since = now();
  other.broken = why;
  check_at_ = std::min(check_at_, *other.broken_since + kGrace);
}

void TcpLayer::ended(int rank, const Error& why) {
  at(rank).connections->drain_control();  // the rank may have reported why it ends
  lose(rank, why);
}

void TcpLayer::departed(int rank) {
  auto& other = at(rank);
  if (other.departed_since || other.lost) return;
  other.departed_since = now();
  other.connections->drain_control();
  other.connections->refuse_sends();
}

void TcpLayer::check() {
  const auto time = now();
  if (time < check_at_) return;
  check_at_ = time + kCheck;
  // This process was stopped, or did not drive the layer: during that time the other ranks were not silent, only unread.
  const bool paused = time - std::exchange(checked_at_, time) > kPause;
  gate_.tidy(time);
  for (auto& calling : calls_) {
    if (paused) calling.since = time;
    const bool tries = calling.call->state() == OutgoingCall::State::kConnecting;
    if (tries && time - calling.since > 2 * options_.unanswered)
      lose(calling.rank, unavailable("its host does not answer").with_reason("Silent"));
  }
  for (int r = 0; r < options_.world_size; ++r) {
    auto& other = at(r);
    if (!other.connections || other.lost) continue;
    if (other.departed_since) {
      if (time - *other.departed_since > kDeparture) lose(r, unavailable("it has left the group's connections").with_reason("HungUp"));
    } else if (other.broken_since && time - *other.broken_since >= kGrace) {
      lose(r, *other.broken);
    } else if (const auto silence = other.connections->silence(options_.unanswered); paused || silence == Duration{}) {
      other.num_silent = 0;
    } else if (++other.num_silent >= kSilentChecks) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
      lose(r, unavailable(fmt::format("its host has answered nothing for {} ms", ms)).with_reason("Silent"));
    }
  }
}

// ---- progress ----------------------------------------------------------------------------------------------------------------------

bool TcpLayer::progress() {
  if (forked()) return false;
  const auto before = num_ended_;
  if (!std::exchange(polled_, false)) poller_.poll({});
  poller_.advance_queued();
  meet_guests();
  for (const int rank : std::exchange(to_call_, {})) call_all(rank);
  if (!calls_.empty()) follow_calls();
  check();
  return num_ended_ != before;
}

void TcpLayer::wait(Duration limit) {
  if (forked()) return;
  const auto until_check = std::max<Duration>(check_at_ - now(), Duration{});
  poller_.poll(std::min(limit, until_check));
  polled_ = true;
}

void TcpLayer::flush(Duration limit) {
  if (forked()) return;
  const auto until = now() + limit;
  const auto flushed = [](const Other& other) {
    return !other.connections || other.lost || other.departed_since || other.connections->flushed();
  };
  while (!std::all_of(others_.begin(), others_.end(), flushed) && now() < until) {
    if (!progress()) wait(std::min<Duration>(kFlushPoll, until - now()));
  }
}

void TcpLayer::reset(std::span<const int> gone) {
  ++epoch_;
  connected_epoch_ = epoch_;
  calls_.clear();
  to_call_.clear();
  if (forked()) {
    early_.clear();
    for (auto& other : others_) {
      if (other.connections) other.connections->close();
    }
    return;
  }
  for (auto& other : others_) {
    if (other.connections) other.connections->depart(epoch_);
  }
  for (int r = 0; r < options_.world_size; ++r) {
    auto& other = at(r);
    if (!other.connections) continue;
    other.connections->close();
    other.broken_since.reset();
    other.departed_since.reset();
    if (std::find(gone.begin(), gone.end(), r) != gone.end()) {
      lose(r, unavailable("it is not in the group any more"));
      other.connections->refuse_sends();
    } else {
      other.lost.reset();
      to_call_.push_back(r);
    }
  }
  auto early = std::move(early_);
  early_.clear();
  for (auto& [key, guest] : early) admit(std::move(guest));
}

void TcpLayer::begin_epoch() {
  ++epoch_;
  for (auto& other : others_) {
    if (other.connections) other.connections->begin_epoch(epoch_);
  }
}

// Each other rank takes 4 descriptors and 3 for each of `connections`; the usual soft limit of 1024 ends at 100 ranks.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // if this fails, a connection's error will name the limit
}

}  // namespace

Result<std::shared_ptr<MessageLayer>> make_tcp_layer(TcpOptions options) {
  if (options.connections < 1 || options.connections > 16)
    return fail(invalid_argument(fmt::format("{} connections of a channel: from 1 to 16 are possible", options.connections)));
  if (options.piece_bytes < 1024 || options.piece_bytes > Frame::kMaxPiece)
    return fail(invalid_argument(fmt::format("pieces of {} bytes: from 1 KiB to 16 MiB are possible", options.piece_bytes)));
  if (options.tls && !options.tls->listens())
    return fail(invalid_argument("data connections with TLS need the certificate of this host")
                    .with_hint("start the node with --address or --head"));
  raise_descriptor_limit();
  auto layer = std::make_shared<TcpLayer>(std::move(options));
  SHOAL_OK(layer->open());
  return std::shared_ptr<MessageLayer>(std::move(layer));
}

}  // namespace shoal::runtime
