// The connection of this process to the head or to its node, with the handlers of what arrives there.
//
// At most one attempt to connect is under way. After close() there is no connection, and none is made again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/link/session_loop.h"
#include "actors/wire/method.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A message of a body only.
inline runtime::Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

class Link final : public runtime::PeerHandler {
 public:
  using Message = runtime::Message;
  enum class Lasts { kOnce, kMadeAgain };  // kMadeAgain: once it was made, it is made again whenever it breaks
  struct Options {
    Lasts lasts = Lasts::kOnce;
    runtime::Duration connect_timeout = {};
    Error gone;  // the error of a request without a connection
  };
  Link(SessionLoop& loop, runtime::Network& network, Options options);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- any thread ----
  // Waits for the connection, and dials unless an attempt is under way.
  Result<void> reach();
  // Sends a request and waits for its answer. `sending` runs on the loop just before, if there is a connection.
  Result<Message> ask(Method method, Bytes bytes, runtime::Duration timeout, const std::function<void()>& sending = {});

  // ---- only while the loop is owned ----
  // To be called before the first attempt. Notices and requests of other methods have no effect, and are refused.
  void on_opened(std::function<void()> fn) { opened_.push_back(std::move(fn)); }
  void on_closed(std::function<void()> fn) { closed_.push_back(std::move(fn)); }
  void on_notice(Method method, std::function<void(const Message&)> fn) { notices_[method] = std::move(fn); }
  void on_request(Method method, std::function<Result<Message>(const Message&)> fn) { requests_[method] = std::move(fn); }

  // Addresses of one process, or of several that take turns, to be tried in this order.
  const std::string& endpoints() const { return endpoints_; }
  void set_endpoints(const std::string& endpoints) { endpoints_ = endpoints; }
  // As set_endpoints. Another process than the connected one now serves at the first of them: open requests fail, and it is dialled.
  void move_to(const std::string& endpoints);
  // No effect while there is a connection or an attempt.
  void dial();
  bool connected() const { return peer_ && peer_->connected(); }
  // Calls `done` at once without a connection.
  void call(Method method, Message message, runtime::Duration timeout, runtime::Peer::Callback done);
  // Returns Unavailable without a connection.
  Result<void> notify(Method method, Message message, runtime::Flush flush = runtime::Flush::kNow);
  // Null as soon as the connection is gone.
  runtime::Peer* peer() const { return connected() ? peer_.get() : nullptr; }
  // Open requests fail with Cancelled. No handler runs from then on.
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
  std::string connected_to_;  // one of `endpoints_`
  std::unique_ptr<runtime::Peer> peer_;
  bool dialling_ = false, was_open_ = false, ended_ = false;
  Error failure_ = unavailable("the connection was never made");  // the reason why there is no connection
  runtime::Duration pause_ = kFirstPause;
  runtime::Timer redial_;
};

}  // namespace shoal::actors
