// One rank's view of a model whose ranks are on several hosts: what the parts of a HostLink have in common. All references outlive them.
#pragma once

#include "fsdp/layout/hosts.h"
#include "fsdp/protocol/control.h"
#include "fsdp/protocol/slots.h"
#include "fsdp/unit/sharded_unit.h"

namespace shoal::fsdp {

struct LinkModel {
  Control& control;  // the control words in this host's memory
  const Units& units;
  const Slots& slots;  // the slots in this host's memory
  const Hosts& hosts;
  Grid grid;
  int rank;

  int host() const { return hosts.host_of(rank); }
  // True when the rank is on another host.
  bool remote(int r) const { return !hosts.same_host(r, rank); }
  // True when the rank has left or is gone.
  bool has_ended(int r) const {
    return decode_place(control.rank(r).place.load(std::memory_order_acquire)).doing == Doing::kLeft ||
           control.membership_page().is_gone(static_cast<std::uint32_t>(r));
  }
  // True once all ranks have reported the same model. Until then no parameters are sent, since their sizes may differ.
  bool models_agree() const {
    const auto own = control.rank(rank).fingerprint.load(std::memory_order_acquire);
    for (int r = 0; r < grid.world_size; ++r) {
      if (control.rank(r).fingerprint.load(std::memory_order_acquire) != own) return false;
    }
    return own != 0;
  }
};

}  // namespace shoal::fsdp
