// The client of placement groups: it makes and removes them, and waits for their resources. Any thread, unless noted.
//
// A restarted head gets the requests for awaited groups again. It also gets the removals again, since the earlier head may have ended
// before it stored them.
#pragma once

#include <deque>
#include <set>

#include "actors/session/clients/group_watch.h"
#include "actors/session/link/head_client.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

class GroupClient {
 public:
  GroupClient(SessionLoop& loop, HeadClient& head, runtime::Random& random);
  GroupClient(const GroupClient&) = delete;
  GroupClient& operator=(const GroupClient&) = delete;

  // Makes an id that begins with the time, so that groups that come and go together are adjacent in the head's store. The rest is random.
  GroupId new_id();
  // Returns when the head accepts the group; ready() waits for its placement.
  Result<void> create(const GroupSpec& spec);
  // A future of `value`, ready once the group has all its bundles. It fails with Cancelled/GroupRemoved if the group is removed, and with
  // NotFound if the head does not have the group.
  ValueFuture ready(GroupId group, Value value);
  // Sends the removal, and does not wait until the head has done it. Later requests of this process find the group removed.
  Result<void> remove(GroupId group);
  Result<GroupRow> row(GroupId group);
  Result<GroupRow> find(const FindActor& request);
  // Fails the futures that wait. Only while the loop is owned.
  void close();

 private:
  void watch(GroupId group);
  void repeat();

  // Removals that are kept, to be sent again to a restarted head. A head stores a removal within milliseconds.
  static constexpr std::size_t kMaxRemoved = 1000;

  SessionLoop& loop_;
  HeadClient& head_;
  runtime::Random& random_;
  GroupWatch groups_;
  std::set<GroupId> creating_;  // a restarted head may lack these until their request is repeated
  std::deque<GroupId> removed_;
};

}  // namespace shoal::actors
