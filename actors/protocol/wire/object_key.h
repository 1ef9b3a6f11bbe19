// Converts object keys to Cap'n Proto and back. The reader throws kj::Exception for too many keys, so it is called within runtime::read
// only.
#pragma once

#include <kj/debug.h>

#include <vector>

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/wire/control.capnp.h"

namespace shoal::actors {

inline constexpr std::size_t kMaxObjectKeys = 1 << 20;

inline void fill_keys(capnp::List<wire::ObjectKey>::Builder list, const std::vector<ObjectKey>& keys) {
  for (unsigned i = 0; i < keys.size(); ++i) {
    list[i].setJob(keys[i].job.value);
    list[i].setId(keys[i].id.value);
    list[i].setHome(keys[i].home.value);
  }
}

inline std::vector<ObjectKey> read_keys(capnp::List<wire::ObjectKey>::Reader list) {
  KJ_REQUIRE(list.size() <= kMaxObjectKeys, "too many references");
  std::vector<ObjectKey> out;
  out.reserve(list.size());
  for (const auto k : list) out.push_back({JobId{k.getJob()}, ObjectId{k.getId()}, NodeId{k.getHome()}});
  return out;
}

}  // namespace shoal::actors
