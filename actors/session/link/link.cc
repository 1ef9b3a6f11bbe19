#include "actors/session/link/link.h"

#include <algorithm>
#include <optional>

namespace shoal::actors {

using runtime::Peer;

namespace {

bool may_be_elsewhere(const Error& e) { return e.code() == Code::kUnavailable || e.code() == Code::kDeadlineExceeded; }

}  // namespace

Link::Link(SessionLoop& loop, runtime::Network& network, Options options) : loop_(loop), network_(network), options_(std::move(options)) {}

Result<void> Link::reach() {
  loop_.own([this] { dial(); });
  SHOAL_OK(loop_.wait([this] { return !dialling_; }));
  return loop_.own([this]() -> Result<void> {
    if (connected()) return {};
    return fail(failure_);
  });
}

Result<Link::Message> Link::request(Method method, Bytes bytes, runtime::Duration timeout, const std::function<void()>& sending) {
  auto answer = std::make_shared<std::optional<Result<Message>>>();
  loop_.own([&] {
    if (sending && connected()) sending();
    call(method, body(std::move(bytes)), timeout, [answer](Result<Message> r) { answer->emplace(std::move(r)); });
  });
  SHOAL_OK(loop_.wait([&] { return answer->has_value(); }));
  return std::move(**answer);
}

void Link::move_to(const std::string& endpoints) {
  const bool there = endpoints.substr(0, endpoints.find(',')) == connected_to_;
  endpoints_ = endpoints;
  if (there || !connected()) return;
  peer_->close(unavailable("another head leads now").with_reason("Disconnected"));
  dial();
}

void Link::dial() {
  if (ended_ || dialling_ || connected()) return;
  redial_ = {};
  auto to = runtime::parse_endpoints(endpoints_);
  if (!to) {
    failure_ = to.error();
    return;
  }
  dialling_ = true;
  dial(*std::move(to), 0);
}

// The callback needs no check that this object lives: it runs on the loop, whose thread ends first, and close() sets ended_.
void Link::dial(std::vector<runtime::Endpoint> to, std::size_t at) {
  const auto& endpoint = to[at];
  network_.connect(endpoint, runtime::Role::kClient, options_.connect_timeout,
                   [this, to, at](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (ended_) return;
                     if (!connection && at + 1 < to.size() && may_be_elsewhere(connection.error())) return dial(to, at + 1);
                     connected_to_ = to[at].to_string();
                     dialled(std::move(connection));
                   });
}

void Link::dialled(Result<std::unique_ptr<runtime::Connection>> connection) {
  dialling_ = false;
  if (!connection) {
    failure_ = connection.error();
    return redial_later();
  }
  pause_ = kFirstPause;
  was_open_ = true;
  peer_ = std::make_unique<Peer>(*std::move(connection), *loop_.clock(), *this);
  for (const auto& opened : opened_) opened();
}

void Link::redial_later() {
  if (options_.lasts == Lasts::kOnce || !was_open_) return;
  redial_ = loop_.clock()->after(pause_, [this] { dial(); });
  pause_ = std::min(2 * pause_, kLongestPause);
}

void Link::call(Method method, Message message, runtime::Duration timeout, Peer::Callback on_answer) {
  if (!connected()) return on_answer(fail(options_.gone));
  peer_->call(number(method), std::move(message), timeout, std::move(on_answer));
}

Result<void> Link::notify(Method method, Message message, runtime::Flush flush) {
  if (!connected()) return fail(options_.gone);
  return peer_->notify(number(method), std::move(message), flush);
}

void Link::close() {
  ended_ = true;
  redial_ = {};
  peer_.reset();
}

void Link::on_request(Peer&, runtime::Request request, runtime::Responder responder) {
  const auto handler = requests_.find(static_cast<Method>(request.method));
  if (handler == requests_.end()) return responder.fail(unimplemented("a client accepts no such requests"));
  responder.answer(handler->second(request.message));
}

// Ignores a notice without a handler: it comes from a newer version, or is for other kinds of clients.
void Link::on_notice(Peer&, runtime::Request notice) {
  if (const auto handler = notices_.find(static_cast<Method>(notice.method)); handler != notices_.end()) handler->second(notice.message);
}

void Link::on_closed(Peer&, const Error& why) {
  const auto owned = std::move(peer_);
  failure_ = why;
  redial_later();
  for (const auto& closed : closed_) closed();
}

}  // namespace shoal::actors
