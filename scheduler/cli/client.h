// A command's connection to a head or a node. It makes one blocking request at a time; messages without a request may arrive meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/method.h"
#include "actors/session/folder/folder.h"
#include "runtime/loop/loop.h"
#include "runtime/net/peer.h"
#include "runtime/net/socket/socket_network.h"

namespace shoal::scheduler::cli {

// The loop, clock and network (with the cluster's token) of one command.
class Context {
 public:
  explicit Context(const actors::Credentials& credentials);
  ~Context();

  runtime::Loop loop;
  std::unique_ptr<runtime::Clock> clock = runtime::make_real_clock(loop);
  std::unique_ptr<runtime::Random> random = runtime::make_real_random();
  runtime::SocketNetwork network;

  // Runs the loop until ended() or `limit`; true when done.
  bool run_until(const std::function<bool()>& ended, runtime::Duration limit);
};

class Client final : public runtime::PeerHandler {
 public:
  using OnNotice = std::function<void(actors::Method, runtime::Message)>;
  // connect() retries for this long, because a dead head is restarted within moments.
  static constexpr runtime::Duration kPatience = std::chrono::milliseconds(1500);
  static constexpr runtime::Duration kNextHead = std::chrono::seconds(10);  // as kPatience, for a command that waits for the cluster
  static Result<std::unique_ptr<Client>> connect(Context& context, const std::string& endpoints, runtime::Duration patience = kPatience);
  // Connects again after the connection broke. Subscriptions of the old connection are lost: the caller requests them again.
  Result<void> reconnect(runtime::Duration patience);
  // Called after a failed request. Returns true if the head had died and the next one answers. The caller may then repeat the request.
  bool is_back() { return closed() && reconnect(kNextHead).has_value(); }

  Result<runtime::Message> request(actors::Method method, Bytes body, runtime::Duration timeout = std::chrono::seconds(10),
                                   Bytes payload = {});
  template <class Reply>
  Result<Reply> request_for(actors::Method method, Bytes body) {
    SHOAL_TRY(const runtime::Message reply, request(method, std::move(body)));
    return actors::from_bytes<Reply>(reply.body);
  }
  Result<actors::ListReply> list(actors::ListRequest::What what, JobId job = {}) {
    return actors::list_all({what, job},
                            [this](Bytes request) { return request_for<actors::ListReply>(actors::Method::kList, std::move(request)); });
  }
  void set_on_notice(OnNotice on_notice) { on_notice_ = std::move(on_notice); }
  bool closed() const { return closed_.has_value(); }

 private:
  Client(Context& context, std::vector<runtime::Endpoint> endpoints) : context_(context), endpoints_(std::move(endpoints)) {}
  Result<std::unique_ptr<runtime::Connection>> dial(const runtime::Endpoint& endpoint);
  void on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) override;
  void on_notice(runtime::Peer&, runtime::Request notice) override;
  void on_closed(runtime::Peer&, const Error& why) override { closed_ = why; }

  Context& context_;
  const std::vector<runtime::Endpoint> endpoints_;  // tried in turn
  OnNotice on_notice_;
  std::optional<Error> closed_;
  std::unique_ptr<runtime::Peer> peer_;
};

}  // namespace shoal::scheduler::cli
