#include "fsdp/link/updates.h"

#include <cstring>

namespace shoal::fsdp {

namespace {

struct PublicationHead {
  std::uint64_t sequence;
  std::uint32_t unit, everywhere;
  double weight;
};
struct GoneHead {
  std::uint32_t rank, cause_bytes;
};
static_assert(sizeof(UpdateKind) + sizeof(PublicationHead) + Control::kMaxParameters <= kMaxUpdateBytes);
static_assert(sizeof(UpdateKind) + sizeof(Words) <= kMaxUpdateBytes);

// A message: the kind, then a plain struct, then further bytes.
template <class T>
std::vector<std::byte> message_of(UpdateKind kind, const T& head, std::span<const std::byte> rest = {}) {
  std::vector<std::byte> out(sizeof kind + sizeof head + rest.size());
  std::memcpy(out.data(), &kind, sizeof kind);
  std::memcpy(out.data() + sizeof kind, &head, sizeof head);
  if (!rest.empty()) std::memcpy(out.data() + sizeof kind + sizeof head, rest.data(), rest.size());
  return out;
}

template <class T>
bool take(std::span<const std::byte>& from, T& value) {
  if (from.size() < sizeof value) return false;
  std::memcpy(&value, from.data(), sizeof value);
  from = from.subspan(sizeof value);
  return true;
}

}  // namespace

Words Words::load(const Control::RankWords& w) {
  return {w.fingerprint.load(), w.entered.load(), w.left.load(),     w.published.load(),
          w.consumed.load(),    w.waiting.load(), w.checks.load(),   w.joined.load(),
          w.place.load(),       w.summed.load(),  w.recorded.load(), {w.parts[0].load(), w.parts[1].load()}};
}

void Words::store(Control::RankWords& w) const {
  w.fingerprint.store(fingerprint);
  w.place.store(place);
  w.joined.store(joined);
  w.parts[0].store(parts[0]);
  w.parts[1].store(parts[1]);
  w.waiting.store(waiting);
  w.checks.store(checks);
  w.consumed.store(consumed);
  w.published.store(published);
  w.entered.store(entered);
  w.left.store(left);
  w.summed.store(summed);
  w.recorded.store(recorded);
}

void Publication::store(Control::Slot& slot) const {
  slot.unit.store(unit, std::memory_order_relaxed);
  slot.everywhere.store(everywhere, std::memory_order_relaxed);
  slot.weight.store(weight, std::memory_order_relaxed);
  std::memcpy(slot.present, present.data(), present.size());
}

std::vector<std::byte> encode(UpdateKind kind) {
  std::vector<std::byte> out(sizeof kind);
  std::memcpy(out.data(), &kind, sizeof kind);
  return out;
}

std::vector<std::byte> encode(const Words& words) { return message_of(UpdateKind::kWords, words); }

std::vector<std::byte> encode(const Publication& p) {
  return message_of(UpdateKind::kPublication, PublicationHead{p.sequence, p.unit, p.everywhere, p.weight}, std::as_bytes(p.present));
}

std::vector<std::byte> encode_gone(std::uint32_t rank, std::string_view cause) {
  const auto text = std::as_bytes(std::span(cause)).first(std::min<std::size_t>(cause.size(), 1024));
  return message_of(UpdateKind::kGone, GoneHead{rank, static_cast<std::uint32_t>(text.size())}, text);
}

std::optional<Update> decode_update(std::span<const std::byte> message) {
  Update out{};
  if (!take(message, out.kind)) return std::nullopt;
  switch (out.kind) {
    case UpdateKind::kWords:
      if (!take(message, out.words) || !message.empty()) return std::nullopt;
      return out;
    case UpdateKind::kPublication: {
      PublicationHead head;
      if (!take(message, head) || message.size() > Control::kMaxParameters) return std::nullopt;
      out.publication = {
          head.sequence, head.unit, head.everywhere, head.weight, {reinterpret_cast<const std::uint8_t*>(message.data()), message.size()}};
      return out;
    }
    case UpdateKind::kGone: {
      GoneHead head;
      if (!take(message, head) || head.cause_bytes != message.size()) return std::nullopt;
      out.gone = head.rank;
      out.cause.assign(reinterpret_cast<const char*>(message.data()), head.cause_bytes);
      return out;
    }
    case UpdateKind::kStuck:
    case UpdateKind::kPublished:
      return message.empty() ? std::optional(out) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace shoal::fsdp
