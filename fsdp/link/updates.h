// A rank's reports about itself to other hosts: its control words, its publications, and its end. They are plain structs in the byte order
// of the hosts, which a MessageLayer has found to be alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/protocol/control.h"

namespace shoal::fsdp {

enum class UpdateKind : std::uint32_t { kWords, kPublication, kStuck, kGone, kPublished };

// A rank's control words, in the order of Control::RankWords. Not among them: `stuck`, which other ranks write, and `linked`,
// which counts on the rank's own host only.
struct Words {
  std::uint64_t fingerprint = 0, entered = 0, left = 0, published = 0, consumed = 0, waiting = 0, checks = 0, joined = 0, place = 0,
                summed = 0, recorded = 0;
  std::uint64_t parts[2] = {0, 0};
  bool operator==(const Words&) const = default;

  static Words load(const Control::RankWords& words);
  // Stores them. Words that let other ranks go on are stored after the words that those ranks then read.
  void store(Control::RankWords& words) const;
};

// The control words of one publication. `present` has an entry per parameter of the unit.
struct Publication {
  std::uint64_t sequence = 0;
  std::uint32_t unit = 0, everywhere = 0;
  double weight = 0;
  std::span<const std::uint8_t> present;

  void store(Control::Slot& slot) const;
};

// The updates as messages, and the largest size of one.
constexpr std::size_t kMaxUpdateBytes = 64 + Control::kMaxParameters;
std::vector<std::byte> encode(UpdateKind kind);  // kStuck, kPublished
std::vector<std::byte> encode(const Words& words);
std::vector<std::byte> encode(const Publication& publication);
std::vector<std::byte> encode_gone(std::uint32_t rank, std::string_view cause);

// A received message. The spans refer to its bytes. nullopt: it is not an update.
struct Update {
  UpdateKind kind;
  Words words = {};
  Publication publication = {};
  std::uint32_t gone = 0;  // a rank of the sender's host
  std::string cause = {};
};
std::optional<Update> decode_update(std::span<const std::byte> message);

}  // namespace shoal::fsdp
