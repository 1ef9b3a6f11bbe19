#include "scheduler/state/bounds.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/protocol/cluster/row_bounds.h"

namespace shoal::scheduler {

using actors::pairs_bytes;
using actors::Resources;
using actors::RowBounds;

namespace {

// Bytes of a row's numbers and pointers, of an item of a list, and of a text besides its characters.
constexpr std::size_t kRow = 240, kItem = 32, kText = 8;
// A class name is shorter than other texts, since the role of its process has a word in front of it.
constexpr std::size_t kMaxClassName = RowBounds::kMaxText - 16;

std::size_t bytes_of(const std::string& text) { return text.size() + kText; }

// The bytes of encoded resources: each has two words for its amount, and its name with a final zero byte, in whole words.
std::size_t bytes_of(const Resources& resources) {
  constexpr std::size_t kWord = 8;
  std::size_t out = 0;
  for (const auto& [name, units] : resources.all()) out += 2 * kWord + (name.size() / kWord + 1) * kWord;
  return out;
}

// A byte of a cause that is not UTF-8 becomes three (runtime/wire/error_message.h).
std::size_t bytes_of(const std::optional<Error>& cause) {
  if (!cause) return 0;
  std::size_t texts = cause->message().size() + cause->hint().size() + cause->reason().size() + cause->cause_reason().size();
  for (const auto& frame : cause->context()) texts += frame.size();
  return kRow + kItem * cause->context().size() + 3 * texts;
}

template <class... Values>
std::size_t sum(const Values&... values) {
  return kRow + (bytes_of(values) + ...);
}

Result<void> bounded(const std::string& what, std::size_t bytes, std::size_t most) {
  if (bytes <= most) return {};
  return fail(invalid_argument(fmt::format("{} has {} bytes, and the head stores at most {}", what, bytes, most)).with_reason("TooLarge"));
}

Result<void> check_text(const char* what, const std::string& text) { return bounded(what, text.size(), RowBounds::kMaxText); }

Result<void> check_resources(const Resources& resources) {
  for (const auto& [name, units] : resources.all()) SHOAL_OK(bounded("the name of a resource", name.size(), RowBounds::kMaxResourceName));
  return {};
}

}  // namespace

std::size_t row_bytes(const actors::ActorRow& r) {
  return sum(r.name, r.name_space, r.class_name, r.endpoint, r.pending_reason, r.cause) + pairs_bytes(r.attributes);
}
std::size_t row_bytes(const actors::NodeRow& r) { return sum(r.host, r.endpoint, r.total, r.available) + pairs_bytes(r.labels); }
std::size_t row_bytes(const actors::WorkerRow& r) { return sum(r.role, r.cause); }
std::size_t row_bytes(const actors::JobRow& r) {
  const auto& s = r.submission;
  return sum(r.name, r.pending_reason, s.id, s.entrypoint, s.runtime_env, r.cause) + pairs_bytes(s.metadata);
}
std::size_t row_bytes(const actors::GroupRow& r) {
  std::size_t out = sum(r.name, r.name_space, r.pending_reason, r.cause);
  for (const auto& bundle : r.bundles) out += 24 + bytes_of(bundle);  // its node, and its list with the list's tag
  return out;
}

Result<void> check_bounds(const actors::RegisterNode& node) {
  SHOAL_OK(check_text("the host of the node", node.host));
  SHOAL_OK(check_text("the endpoint of the node", node.endpoint));
  SHOAL_OK(check_resources(node.resources));
  SHOAL_OK(bounded("the labels of the node (with 32 more for each)", pairs_bytes(node.labels), RowBounds::kMaxPairsBytes));
  actors::NodeRow row;
  row.total = row.available = node.resources;
  return bounded("the list of the node's resources", row_bytes(row), RowBounds::kMaxRow);
}

Result<void> check_bounds(const actors::JobSpec& job) {
  SHOAL_OK(check_text("the name of the job", job.name));
  SHOAL_OK(check_resources(job.resources));
  SHOAL_OK(bounded("the job's metadata (with 32 more for each name)", pairs_bytes(job.submission.metadata), RowBounds::kMaxPairsBytes));
  const std::size_t wants = job.resources.all().size() * std::max<std::size_t>(1, job.num_workers);
  if (wants <= RowBounds::kMaxWants) return {};
  return fail(invalid_argument(fmt::format("the job's {} processes request {} resources together, and at most {} are stored",
                                           job.num_workers, wants, RowBounds::kMaxWants))
                  .with_reason("TooLarge"));
}

Result<void> check_bounds(const actors::GangSpec& gang) {
  for (const auto& actor : gang.actors) {
    SHOAL_OK(bounded("the name of the actor's class", actor.class_name.size(), kMaxClassName));
    SHOAL_OK(check_resources(actor.resources));
  }
  return {};
}

Result<void> check_bounds(const actors::GroupSpec& group) {
  actors::GroupRow row;
  row.bundles = group.bundles;
  for (const auto& bundle : group.bundles) SHOAL_OK(check_resources(bundle));
  return bounded("the list of the placement group's bundles", row_bytes(row), RowBounds::kMaxRow);
}

Result<void> check_bounds(const actors::HostActor& actor) {
  SHOAL_OK(bounded("the name of the actor's class", actor.class_name.size(), kMaxClassName));
  SHOAL_OK(check_text("the endpoint of the actor", actor.endpoint));
  return check_bounds({}, {actor.actor, actor.attributes});
}

Result<void> check_bounds(const std::map<std::string, std::string>& attributes, const actors::SetAttributes& more) {
  std::map<std::string, std::string> all = more.attributes;
  all.insert(attributes.begin(), attributes.end());  // new values of known names take the place of the old ones
  return bounded("the list of the actor's attributes (with 32 more for each)", pairs_bytes(all), RowBounds::kMaxPairsBytes);
}

}  // namespace shoal::scheduler
