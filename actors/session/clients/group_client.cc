#include "actors/session/clients/group_client.h"

namespace shoal::actors {

GroupClient::GroupClient(SessionLoop& loop, HeadClient& head, runtime::Random& random) : loop_(loop), head_(head), random_(random) {
  head.link().on_opened([this] { repeat(); });
  head.on_notice<GroupRow>(Method::kGroupUpdate, [this](const GroupRow& row) { groups_.updated(row); });
}

GroupId GroupClient::new_id() {
  return loop_.own([this] {
    const auto time = static_cast<std::uint64_t>(loop_.clock()->unix_millis());
    return GroupId{time << 32 | (random_.id<GroupId>().value & 0xffffffff)};
  });
}

Result<void> GroupClient::create(const GroupSpec& spec) {
  const auto created = head_.request(Method::kCreateGroup, to_bytes(spec), [&] {
    creating_.insert(spec.id);
    groups_.expect(spec.id);
  });
  loop_.own([&] {
    creating_.erase(spec.id);
    if (!created) groups_.unknown(spec.id, created.error());
  });
  if (!created) return fail(created.error());
  return {};
}

ValueFuture GroupClient::ready(GroupId group, Value value) {
  (void)head_.reach();  // without a head the future fails
  return loop_.own([&] {
    const bool known = groups_.knows(group);
    auto out = groups_.ready(group, std::move(value));
    if (!known) watch(group);
    return out;
  });
}

// Loop thread only.
void GroupClient::watch(GroupId group) {
  head_.call(Method::kWatchGroup, to_bytes(GroupRef{group}), [this, group](const Result<runtime::Message>& reply) {
    const auto row = reply ? from_bytes<GroupRow>(reply->body) : Result<GroupRow>(fail(reply.error()));
    if (row) groups_.updated(*row);
    if (!row && row.error().reason() != "Disconnected") groups_.unknown(group, row.error());
  });
}

// Loop thread only.
void GroupClient::repeat() {
  for (const GroupId group : groups_.expected()) {
    if (!creating_.contains(group)) watch(group);
  }
  for (const GroupId group : removed_) (void)head_.link().notify(Method::kRemoveGroup, body(to_bytes(GroupRef{group})));
}

Result<void> GroupClient::remove(GroupId group) {
  SHOAL_OK(head_.reach());
  return loop_.own([&]() -> Result<void> {
    if (!head_.link().connected()) return fail(head_gone());
    (void)head_.link().notify(Method::kRemoveGroup, body(to_bytes(GroupRef{group})));
    removed_.push_back(group);
    if (removed_.size() > kMaxRemoved) removed_.pop_front();
    return {};
  });
}

Result<GroupRow> GroupClient::row(GroupId group) { return head_.request_for<GroupRow>(Method::kWatchGroup, to_bytes(GroupRef{group})); }

Result<GroupRow> GroupClient::find(const FindActor& request) { return head_.request_for<GroupRow>(Method::kFindGroup, to_bytes(request)); }

void GroupClient::close() {
  for (const GroupId group : groups_.expected()) groups_.unknown(group, cancelled("this process left the cluster"));
}

}  // namespace shoal::actors
