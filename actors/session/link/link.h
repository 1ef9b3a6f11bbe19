// The connection of this process to the head or to its node, with the handlers of the messages that arrive on it.
//
// At most one attempt to connect is under way. close() ends the connection for good.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/protocol/wire/method.h"
#include "actors/session/link/session_loop.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A message that has a body and no payload or descriptors.
inline runtime::Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

class Link final : public runtime::PeerHandler {
 public:
  using Message = runtime::Message;
  // kReconnects: a connection that breaks is made again; the first one is made only by dial().
  enum class Lasts { kOnce, kReconnects };
  struct Options {
    Lasts lasts = Lasts::kOnce;
    runtime::Duration connect_timeout = {};
    Error gone;  // the error of a request without a connection
  };
  Link(SessionLoop& loop, runtime::Network& network, Options options);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- any thread ----
  // Dials, unless there is a connection or an attempt, and waits for the outcome.
  Result<void> reach();
  // Sends a request and waits for its answer. `sending` runs on the loop just before the request is sent, if there is a connection.
  Result<Message> request(Method method, Bytes bytes, runtime::Duration timeout, const std::function<void()>& sending = {});

  // ---- only while the loop is owned ----
  // The handlers, to be set before the first attempt. Notices without a handler are ignored, requests without one are refused.
  void on_opened(std::function<void()> fn) { opened_.push_back(std::move(fn)); }
  void on_closed(std::function<void()> fn) { closed_.push_back(std::move(fn)); }
  void on_notice(Method method, std::function<void(const Message&)> fn) { notices_[method] = std::move(fn); }
  void on_request(Method method, std::function<Result<Message>(const Message&)> fn) { requests_[method] = std::move(fn); }

  // Addresses of one process, or of several processes that take turns. dial() tries them in this order.
  const std::string& endpoints() const { return endpoints_; }
  void set_endpoints(const std::string& endpoints) { endpoints_ = endpoints; }
  // As set_endpoints(). If the process at the first endpoint is not the connected one, open requests fail and that process is dialled.
  void move_to(const std::string& endpoints);
  // Begins to connect. No effect while there is a connection or an attempt.
  void dial();
  bool connected() const { return peer_ && peer_->connected(); }
  // Sends a request. Without a connection, `on_answer` is called at once with the error.
  void call(Method method, Message message, runtime::Duration timeout, runtime::Peer::Callback on_answer);
  // Returns Unavailable without a connection.
  Result<void> notify(Method method, Message message, runtime::Flush flush = runtime::Flush::kNow);
  // Null as soon as the connection is gone.
  runtime::Peer* peer() const { return connected() ? peer_.get() : nullptr; }
  // Fails open requests with Cancelled, and ends the connection. No handler runs from then on.
  void close();

 private:
  void dial(std::vector<runtime::Endpoint> to, std::size_t at);
  void dialled(Result<std::unique_ptr<runtime::Connection>> connection);
  void redial_later();
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  static constexpr runtime::Duration kFirstPause = std::chrono::milliseconds(100), kLongestPause = std::chrono::seconds(3);

  SessionLoop& loop_;
  runtime::Network& network_;
  const Options options_;
  std::vector<std::function<void()>> opened_, closed_;
  std::map<Method, std::function<void(const Message&)>> notices_;
  std::map<Method, std::function<Result<Message>(const Message&)>> requests_;
  std::string endpoints_;
  std::string connected_to_;  // the one of `endpoints_` that was dialled last
  std::unique_ptr<runtime::Peer> peer_;
  bool dialling_ = false, was_open_ = false, ended_ = false;
  Error failure_ = unavailable("the connection was never made");  // the reason why there is no connection
  runtime::Duration pause_ = kFirstPause;
  runtime::Timer redial_;
};

}  // namespace shoal::actors
