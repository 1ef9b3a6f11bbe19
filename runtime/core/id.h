// Strong identifiers: the compiler rejects a JobId in place of an ActorId, or an index in place of a Rank.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

// An id of 64 random bits. 0 is the id of nothing.
template <class Tag>
struct Id {
  std::uint64_t value = 0;

  explicit operator bool() const { return value != 0; }
  auto operator<=>(const Id&) const = default;
};

std::string hex(std::uint64_t value);                             // 16 digits
std::optional<std::uint64_t> parse_hex(std::string_view digits);  // 1 to 16 digits

template <class Tag>
std::string to_string(Id<Tag> id) {
  return hex(id.value);
}

using NodeId = Id<struct NodeTag>;
using JobId = Id<struct JobTag>;
using WorkerId = Id<struct WorkerTag>;  // a worker process
using ActorId = Id<struct ActorTag>;
using ObjectId = Id<struct ObjectTag>;
using GangId = Id<struct GangTag>;
using GroupId = Id<struct GroupTag>;  // a placement group

// The position of a process in a gang or mesh, from 0 to world_size - 1.
struct Rank {
  std::int32_t value = 0;
  auto operator<=>(const Rank&) const = default;
};

// The number of a gang's membership; a plan of a step is made for one generation.
struct Generation {
  std::uint64_t value = 0;
  auto operator<=>(const Generation&) const = default;
};

}  // namespace shoal

template <class Tag>
struct std::hash<shoal::Id<Tag>> {
  std::size_t operator()(shoal::Id<Tag> id) const noexcept { return static_cast<std::size_t>(id.value); }
};
