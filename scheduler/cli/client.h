// The CLI's end of a conversation with a head or a node: one blocking request at a time, notices in between.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/folder.h"
#include "actors/wire/messages.h"
#include "runtime/loop/loop.h"
#include "runtime/net/peer.h"
#include "runtime/net/socket_network.h"

namespace shoal::scheduler::cli {

// What commands share: a loop, a clock, a network with the cluster's token.
class Context {
 public:
  explicit Context(const actors::Credentials& credentials);
  ~Context();

  runtime::Loop loop;
  std::unique_ptr<runtime::Clock> clock = runtime::make_real_clock(loop);
  std::unique_ptr<runtime::Random> random = runtime::make_real_random();
  runtime::SocketNetwork network;

  // Runs the loop until done() or `limit`; true when done.
  bool run_until(const std::function<bool()>& done, runtime::Duration limit);
};

class Client final : public runtime::PeerHandler {
 public:
  using OnNotice = std::function<void(actors::Method, runtime::Message)>;
  // A head that died is started again within moments: whoever needs one tries for a while.
  static constexpr runtime::Duration kPatience = std::chrono::milliseconds(1500);
  static Result<std::unique_ptr<Client>> connect(Context& context, const std::string& endpoints, runtime::Duration patience = kPatience);
  // After the connection broke. What was watched has to be asked for again.
  Result<void> reconnect(runtime::Duration patience);

  Result<runtime::Message> ask(actors::Method method, Bytes body, runtime::Duration timeout = std::chrono::seconds(10));
  // Does not wait: `answered` comes while the context's loop runs.
  void ask_later(actors::Method method, Bytes body, runtime::Duration timeout, std::function<void(Result<runtime::Message>)> answered) {
    peer_->call(actors::number(method), {std::move(body), {}, {}}, timeout, std::move(answered));
  }
  template <class Reply>
  Result<Reply> ask_for(actors::Method method, Bytes body) {
    SHOAL_TRY(const runtime::Message reply, ask(method, std::move(body)));
    return actors::from_bytes<Reply>(reply.body);
  }
  Result<actors::ListReply> list(actors::ListRequest::What what, JobId job = {}) {
    return actors::list_all({what, job},
                            [this](Bytes request) { return ask_for<actors::ListReply>(actors::Method::kList, std::move(request)); });
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

// Which cluster a command means: --address, $SHOAL_ADDRESS, or the one that runs.
struct Target {
  std::string root;     // of session folders
  std::string address;  // "" when none was given
  // Of a cluster that this host is no part of; "" when they were not given.
  std::string token;         // the text of it: the environment's
  std::string token_file;    // or where it lies
  bool token_named = false;  // on the command line: it has to be the cluster's, also where that is known without it
  std::string fingerprint;   // of its authority
};
struct Found {
  std::optional<actors::SessionFolder> folder;  // none when this host is no part of it
  actors::Credentials credentials;
  std::string endpoint;  // of the head, or of several, comma-separated: the way to it from this host
  std::string address;   // as people name it
};
// What token and fingerprint come to. InvalidArgument says which of them is missing or wrong.
Result<actors::Credentials> credentials_of(const Target& target);
// Unavailable/NoCluster when none runs. None named: `exactly` (to use or to end it) means the only one that is not some program's own,
// and InvalidArgument lists them when there are several; otherwise (to look at it) the latest, a program's own if there is no other.
Result<Found> find_cluster(const Target& target, bool exactly);

// The way to its head, or why there is none: who was asked where, and what to do.
Result<std::unique_ptr<Client>> connect_head(Context& context, const Found& found);

}  // namespace shoal::scheduler::cli
