#include "scheduler/cli/client.h"

#include "actors/session/folder/open_network.h"

namespace shoal::scheduler::cli {

using runtime::Message;

Context::Context(const actors::Credentials& credentials)
    : network(loop, *clock, *random, credentials.token, actors::socket_options(credentials)) {}

Context::~Context() {
  bool drained = false;
  network.stop([&] { drained = true; });
  run_until([&] { return drained; }, std::chrono::seconds(1));
}

bool Context::run_until(const std::function<bool()>& ended, runtime::Duration limit) {
  const auto end = clock->now() + limit;
  while (!ended()) {
    const auto left = end - clock->now();
    if (left <= runtime::Duration(0)) return false;
    loop.run_one(left);
  }
  return true;
}

Result<std::unique_ptr<Client>> Client::connect(Context& context, const std::string& endpoints, runtime::Duration patience) {
  SHOAL_TRY(auto to, runtime::parse_endpoints(endpoints));
  std::unique_ptr<Client> out(new Client(context, std::move(to)));
  SHOAL_OK(out->reconnect(patience));
  return out;
}

Result<std::unique_ptr<runtime::Connection>> Client::dial(const runtime::Endpoint& endpoint) {
  std::optional<Result<std::unique_ptr<runtime::Connection>>> answer;
  context_.network.connect(endpoint, runtime::Role::kClient, std::chrono::seconds(5),
                           [&](Result<std::unique_ptr<runtime::Connection>> r) { answer.emplace(std::move(r)); });
  context_.run_until([&] { return answer.has_value(); }, std::chrono::seconds(10));
  if (!answer) return fail(deadline_exceeded("no answer from " + endpoint.to_string()));
  return std::move(*answer);
}

Result<void> Client::reconnect(runtime::Duration patience) {
  const auto end = context_.clock->now() + patience;
  for (;;) {
    bool nobody = true;  // no endpoint listens, so retry; a head that listens and hangs up has refused this client for good
    std::optional<Error> first;
    for (const auto& endpoint : endpoints_) {
      auto connection = dial(endpoint);
      if (connection) {
        closed_.reset();
        peer_ = std::make_unique<runtime::Peer>(*std::move(connection), *context_.clock, *this);
        return {};
      }
      const Error& e = connection.error();
      const bool absent = e.code() == Code::kUnavailable && e.reason() != "HungUp";
      if (!first || (nobody && !absent)) first = e;
      nobody = nobody && absent;
    }
    if (!nobody || context_.clock->now() >= end) return fail(*first);
    context_.run_until([] { return false; }, std::chrono::milliseconds(50));
  }
}

Result<Message> Client::request(actors::Method method, Bytes body, runtime::Duration timeout, Bytes payload) {
  std::optional<Result<Message>> answer;
  peer_->call(actors::number(method), {std::move(body), std::move(payload), {}}, timeout,
              [&](Result<Message> r) { answer.emplace(std::move(r)); });
  context_.run_until([&] { return answer.has_value(); }, timeout + std::chrono::seconds(5));
  if (!answer) return fail(deadline_exceeded("no answer in time"));
  return std::move(*answer);
}

void Client::on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a client takes no requests"));
}

void Client::on_notice(runtime::Peer&, runtime::Request notice) {
  if (on_notice_) on_notice_(static_cast<actors::Method>(notice.method), std::move(notice.message));
}

}  // namespace shoal::scheduler::cli
