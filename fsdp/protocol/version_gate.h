// The protocol for shared rows: which rank may read which version of the parameters, and when a rank may write the next one.
//
// A host has one copy of the parameters. A rank writes its rows of version v+1 only when no rank reads version v any more. It reads version
// v+1 only when every rank's rows of it are final. Two words per rank state this (control.h):
//
//   entered[r] = v   Rank r's rows of version v are final. Stored when r enters the engine (forward, unshard) after a write window.
//                    The end of optimizer.step() would be too early: weights clipped by hand after step() are included, as in an
//                    all_gather.
//
//   left[r] = v      Rank r reads version v no more. Stored at the end of a synchronised backward, or at another opening of a write window.
//
// The gate is a pure state machine over those words: it neither waits nor wakes other ranks (MembershipPage::notify_all).
#pragma once

#include <cstdint>

#include "fsdp/protocol/control.h"

namespace shoal::fsdp {

class VersionGate {
 public:
  // The window is open while kWriting. version() may be read while kReading, once readable(). In kLeaving this rank has stopped reading and
  // waits for the others to stop.
  enum class Phase { kWriting, kReading, kLeaving };

  VersionGate(Control& control, int rank, int world_size) : control_(control), rank_(rank), world_size_(world_size) {}

  Phase phase() const { return phase_; }
  std::uint64_t version() const { return version_; }

  // Enters the engine: this rank's writes become the next version. Returns true if a word was stored; the caller then notifies the page.
  bool enter();
  // True when every rank's rows of version() are final.
  bool readable() const { return slowest(&Control::RankWords::entered) >= version_; }

  // Declares that this rank reads version() no more. Returns true if a word was stored; the caller then notifies the page.
  bool leave();
  // True when no rank reads version() any more. Called after leave(); then open() opens the window.
  bool writable() const { return slowest(&Control::RankWords::left) >= version_; }
  void open();

  // True when another rank has left the version that this rank reads.
  bool others_left() const;

  // The first rank whose word keeps readable(), or writable(), false; -1: none. Messages about waits name it.
  int missing_to_read() const { return behind(&Control::RankWords::entered); }
  int missing_to_write() const { return behind(&Control::RankWords::left); }

 private:
  using Word = std::atomic<std::uint64_t> Control::RankWords::*;
  std::uint64_t slowest(Word word) const;
  int behind(Word word) const;

  Control& control_;
  const int rank_;
  const int world_size_;
  Phase phase_ = Phase::kWriting;  // open at first, because no rank reads version 0
  std::uint64_t version_ = 0;
};

}  // namespace shoal::fsdp
