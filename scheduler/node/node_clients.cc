#include "scheduler/node/node_clients.h"

#include "actors/protocol/wire/method.h"

namespace shoal::scheduler {

using runtime::Peer;

void NodeClients::add(std::unique_ptr<runtime::Connection> connection) {
  const Number number = next_++;
  clients_[number].peer = std::make_unique<Peer>(std::move(connection), clock_, handler_, number);
}

NodeClient* NodeClients::find(Number number) {
  const auto it = clients_.find(number);
  return it == clients_.end() ? nullptr : &it->second;
}

NodeClient NodeClients::take(Number number) { return std::move(clients_.extract(number).mapped()); }

void NodeClients::close_nodes(const std::function<void(Number)>& closed) {
  std::erase_if(clients_, [&](const auto& client) {
    if (!client.second.node) return false;
    closed(client.first);
    return true;
  });
}

std::size_t NodeClients::queued(Number number) const {
  const auto it = clients_.find(number);
  return it == clients_.end() ? 0 : it->second.peer->queued_bytes();
}

void NodeClients::each(const std::function<void(Number, const NodeClient&)>& see) const {
  for (const auto& [number, client] : clients_) see(number, client);
}

void NodeClients::want_room(std::uint64_t bytes, const Peer* but) const {
  for (const auto& [number, client] : clients_) {
    if (client.peer.get() == but || !client.worker) continue;
    client.peer->notify(actors::number(actors::Method::kMakeRoom), {to_bytes(actors::MakeRoom{bytes}), {}, {}});
  }
}

}  // namespace shoal::scheduler
