// The reductions' part between hosts: sums over this host's ranks for owners on other hosts, and other hosts' sums for this rank.
#pragma once

#include <cstdint>

namespace shoal::fsdp {

class RemoteSums {
 public:
  virtual ~RemoteSums() = default;
  // This rank has published: its control words and slot are complete. Once all ranks of its host have, their sums are sent to owners on
  // other hosts. `everywhere`: as in Reducer::How.
  virtual void published(std::uint64_t sequence, std::uint32_t unit, bool everywhere) = 0;
  // True when this rank no longer reads its host's slots of this publication.
  virtual bool sent(std::uint64_t sequence) const = 0;
  // A rank of another host that sends this rank the sums of its host, and whose sums of this publication have not arrived; -1: none.
  virtual int missing_sender(std::uint64_t sequence) const = 0;
  // Forgets publications that are not sent yet. Sums under way are still sent, and their receivers discard them.
  virtual void drop() = 0;
};

}  // namespace shoal::fsdp
