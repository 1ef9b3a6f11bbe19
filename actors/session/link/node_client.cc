#include "actors/session/link/node_client.h"

#include "runtime/shm/memory.h"

namespace shoal::actors {

NodeClient::NodeClient(SessionLoop& loop, runtime::Network& network, const Identity& self, Options options)
    : loop_(loop),
      self_(self),
      options_(options),
      link_(loop, network, {Link::Lasts::kOnce, options.connect_timeout, unavailable("the node is gone").with_reason("NodeGone")}) {}

Result<NodeClient::Presented> NodeClient::attach(const std::string& endpoint, const Attach& process) {
  loop_.own([&] { link_.set_endpoints(endpoint); });
  SHOAL_OK(link_.reach());
  SHOAL_TRY(runtime::Message reply, request(Method::kAttach, to_bytes(process)));
  SHOAL_TRY(auto node, from_bytes<Attached>(reply.body));
  return Presented{std::move(node), std::move(reply.fds)};
}

Result<Fd> NodeClient::open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member, bool lasting) {
  SHOAL_TRY(runtime::Message reply, request(Method::kOpenArena, to_bytes(OpenArena{key, bytes, self_.job, member, lasting})));
  if (reply.fds.size() != 1) return fail(internal("an arena arrived without its memory"));
  SHOAL_TRY(const std::size_t size, runtime::memory_bytes(reply.fds[0]));
  if (size != bytes) return fail(internal("an arena arrived with another size"));
  return std::move(reply.fds[0]);
}

Result<Fd> NodeClient::find_arena(const std::string& key) {
  SHOAL_TRY(runtime::Message reply, request(Method::kOpenArena, to_bytes(OpenArena{key, OpenArena::kAsItIs, self_.job})));
  if (reply.fds.size() != 1) return fail(internal("an arena arrived without its memory"));
  return std::move(reply.fds[0]);
}

void NodeClient::drop_arena(const std::string& key) {
  loop_.own([&] {
    link_.call(Method::kDropArena, body(to_bytes(ArenaRef{key, self_.job})), options_.control_timeout,
               [](const Result<runtime::Message>&) {});
  });
}

}  // namespace shoal::actors
