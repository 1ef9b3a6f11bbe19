#include "scheduler/node/head_link.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/protocol/wire/method.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);  // a heartbeat that comes later than this is logged

Message body_only(Bytes bytes) { return {std::move(bytes), {}, {}}; }

}  // namespace

HeadLink::HeadLink(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, runtime::PeerHandler& handler,
                   Events events)
    : clock_(clock),
      network_(network),
      log_(std::move(log)),
      options_(std::move(options)),
      handler_(handler),
      events_(std::move(events)),
      endpoints_(options_.endpoints),
      absence_(options_.absence, clock.now()) {}

void HeadLink::connect() {
  // With several heads, one that stands still may accept a connection and not answer, so the wait is shorter.
  const auto timeout = several() ? std::min(options_.connect_timeout, options_.silence) : options_.connect_timeout;
  network_.connect(endpoints_.in_use(), runtime::Role::kNode, timeout,
                   [this, alive = alive_](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (!*alive || stopped_) return;
                     if (!connection) return try_next(connection.error());
                     peer_ = std::make_unique<Peer>(*std::move(connection), clock_, handler_);
                     early_heads_.reset();
                     register_node();
                   });
}

void HeadLink::connect_after(runtime::Duration pause) {
  reconnecting_ = clock_.after(pause, [this] { connect(); });
}

// Tries the next head. When all were tried, pauses first.
void HeadLink::try_next(const Error& why) {
  const bool expired = why.reason() == "CertificateExpired";
  if (!expired) {
    log_->debug("no head at {}: {}", endpoints_.in_use().to_string(), why.message());
  } else if (!std::exchange(expiry_reported_, true)) {
    log_->error("the head at {} cannot be reached, and this node tries again until its limit without a head: {} ({})",
                endpoints_.in_use().to_string(), why.message(), why.hint());
  }
  if (gives_up(why)) return;
  endpoints_.next();
  if (++tried_ % endpoints_.size() != 0) return connect();
  connect_after(several() ? options_.reconnect_several : options_.reconnect);
}

bool HeadLink::gives_up(const Error& why) {
  const auto reason = absence_.failed(fmt::format("{}", fmt::join(endpoints_.in_order(), ",")), why, clock_.now());
  if (!reason) return false;
  stop();
  events_.orphaned(*reason);
  return true;
}

void HeadLink::closed(const Error& why) {
  const auto owned = std::move(peer_);
  log_->warn("the head is gone: {}", why.message());
  if (std::exchange(registered_, false)) absence_.answered(clock_.now());
  if (stopped_ || gives_up(why)) return;
  if (several()) endpoints_.next();
  connect_after(several() ? options_.reconnect_several : options_.reconnect);
}

void HeadLink::register_node() {
  peer_->call(number(Method::kRegisterNode), body_only(to_bytes(events_.registration())), options_.connect_timeout,
              [this, alive = alive_](Result<Message> r) {
                if (*alive && !stopped_) registered(std::move(r));
              });
}

void HeadLink::registered(Result<Message> answer) {
  if (!answer) {
    log_->warn("not registered: {}", answer.error().message());
    const bool lost = answer.error().reason() == "Disconnected" || answer.error().code() == Code::kDeadlineExceeded;
    if (!lost) absence_.answered(clock_.now());
    if (answer.error().reason() == "Fenced") {
      events_.fenced();
      exits_.clear();
    }
    peer_.reset();
    if (gives_up(answer.error())) return;
    return connect_after(options_.reconnect);
  }
  tried_ = 0;
  registered_ = true;
  expiry_reported_ = false;
  if (const auto m = from_bytes<actors::RegisteredNode>(answer->body)) {
    if (m->heartbeat_ms > 0) heartbeat_ = std::chrono::milliseconds(m->heartbeat_ms);
    set_heads(early_heads_.value_or(m->heads));
  }
  // Sends the reports that a head may have missed while it was away.
  for (const auto& exit : exits_) report(exit);
  for (const auto& worker : events_.workers()) report(worker);
  beat();
  events_.registered();
}

void HeadLink::heads_are(const std::vector<std::string>& reported) {
  if (registered_) {
    set_heads(reported);
  } else {
    early_heads_ = reported;
  }
}

void HeadLink::set_heads(const std::vector<std::string>& reported) {
  const auto changed = endpoints_.set_reported(reported);
  if (!changed) return;
  log_->info("heads={}", fmt::join(changed->endpoints, ","));
  events_.heads_changed(*changed);
}

void HeadLink::beat() {
  if (!peer_ || !registered_) return;
  if (!several()) {
    peer_->notify(number(Method::kHeartbeat), {});
  } else {
    // A request, since a head that stands still or is cut off keeps its connections while another head leads. Its silence shows that.
    peer_->call(number(Method::kHeartbeat), {}, options_.silence, [this, alive = alive_](Result<Message> r) {
      if (!*alive || r || r.error().code() != Code::kDeadlineExceeded) return;
      if (peer_) peer_->close(unavailable("the head does not answer"));
    });
  }
  beating_ = clock_.after(heartbeat_, [this, due = clock_.now() + heartbeat_] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("the event loop was blocked for {} ms", late.count());
    beat();
  });
}

void HeadLink::report(const actors::WorkerUpdate& worker) {
  if (!peer_ || !registered_) return;
  actors::WorkerUpdate update = worker;
  const bool understood = peer_->identity().version >= runtime::kWorkersStop;
  if (update.state == actors::WorkerState::kStopped && !understood) update.state = actors::WorkerState::kRunning;
  peer_->notify(number(Method::kWorkerUpdate), body_only(to_bytes(update)));
}

void HeadLink::report_exit(const actors::WorkerUpdate& exit) {
  report(exit);
  exits_.push_back(exit);
  if (exits_.size() > options_.max_exits) exits_.pop_front();
}

}  // namespace shoal::scheduler
