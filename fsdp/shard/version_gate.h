// Who may read which version of the parameters, and who may write the next: the protocol that makes shared rows safe.
//
// There is one copy of the parameters on a host. A rank writes its rows of version v+1 only when no rank reads version v any more, and
// reads version v+1 only when every rank's rows of it are final. Two words per rank say that (control.h):
//
//   entered[r] = v   rank r's rows of version v are final. Stored when r enters the engine (forward, unshard) after it could write: as an
//                    all_gather would, not when optimizer.step() returns, so that weights clipped by hand after step() are in.
//   done[r] = v      rank r reads version v no more. Stored at the end of a synchronised backward, or at another door to a write window.
//
// A pure machine over those words: it says what to store and what to wait for, and neither waits nor rings.
#pragma once

#include <cstdint>

#include "fsdp/shard/control.h"

namespace shoal::fsdp {

class VersionGate {
 public:
  // kWriting: this rank's write window is open. kReading: version() may be read once readable(). kLeaving: it reads no more, and waits
  // for the others to say the same.
  enum class Phase { kWriting, kReading, kLeaving };

  VersionGate(Control& control, int rank, int world_size) : control_(control), rank_(rank), world_size_(world_size) {}

  Phase phase() const { return phase_; }
  std::uint64_t version() const { return version_; }

  // Enters the engine: what was written becomes the next version. True when something was stored (ring).
  bool enter();
  // Every rank's rows of version() are final.
  bool readable() const { return slowest(&Control::RankWords::entered) >= version_; }

  // Says that this rank reads version() no more. True when something was stored (ring).
  bool leave();
  // No rank reads version() any more. After leave(); then open() opens the window.
  bool writable() const { return slowest(&Control::RankWords::done) >= version_; }
  void open();

  // The first rank that has not come this far: for whoever waits. -1 when all have.
  int missing_to_read() const { return behind(&Control::RankWords::entered); }
  int missing_to_write() const { return behind(&Control::RankWords::done); }

 private:
  using Word = std::atomic<std::uint64_t> Control::RankWords::*;
  std::uint64_t slowest(Word word) const;
  int behind(Word word) const;

  Control& control_;
  const int rank_;
  const int world_size_;
  Phase phase_ = Phase::kWriting;  // nobody reads what is not there yet
  std::uint64_t version_ = 0;
};

}  // namespace shoal::fsdp
