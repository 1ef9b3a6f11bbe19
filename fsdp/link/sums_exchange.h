// Sends the sums of this host's gradients to owners on other hosts, and receives the other hosts' sums for this rank's rows.
//
// On each host the owner's partner (Hosts::partner) makes the sums of a publication, one per block of the host's ranks (Hosts::blocks). So
// a host with one block sends only as many bytes as the owner's rows have, however many ranks it has. Sums arrive in the owner's slots.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp/link/link_model.h"
#include "fsdp/link/stream.h"

namespace shoal::fsdp {

class SumsExchange {
 public:
  // `changed` is called when sums have arrived or are sent, on the thread that calls advance().
  SumsExchange(LinkModel model, runtime::MessageLayer& layer, std::function<void()> changed);

  // Any thread; as in RemoteSums.
  void published(std::uint64_t sequence, std::uint32_t unit, bool everywhere);
  bool sent(std::uint64_t sequence) const;
  int missing_sender(std::uint64_t sequence) const;
  void drop();

  // Begins to receive from all partners. To be called before the first advance().
  void start();
  bool advance();
  // True when everything is sent to owners that have not ended.
  bool finished() const;

 private:
  struct Publication {
    std::uint64_t sequence;
    std::uint32_t unit;
    bool everywhere;
    std::size_t unsent;  // number of owners to which this publication is not sent yet
    bool dropped = false;
  };
  struct Lane {  // to one owner
    Lane(runtime::MessageLayer& layer, int owner);
    StreamSender sender;
    std::uint64_t next = 0;  // number of the publication that it sends next
    std::uint64_t sending = 0;
    bool busy = false;
  };
  struct Header {
    std::uint64_t sequence;
    std::uint32_t unit, num_parameters, everywhere, unused;  // then a byte per block and parameter: 1 if its sum follows
  };

  // kPublished: all ranks of this host have published. kPublishing: they may still do so. kNever: a rank has ended or started over.
  enum class Host { kPublished, kPublishing, kNever };
  Host host_at(std::uint64_t sequence) const;
  // True when the owner sums the gradients of rank r.
  bool sums(int owner, int r, bool everywhere) const { return everywhere || model_.grid.replica_of(r) == model_.grid.replica_of(owner); }
  // Begins to send the sums of a publication to the lane's owner.
  void begin(Lane& lane, const Publication& p);
  void append_pieces(std::vector<OutgoingPiece>& out, const Publication& p, int owner, Block block, std::size_t parameter) const;
  std::optional<std::vector<std::span<std::byte>>> on_header(int host, std::span<const std::byte> bytes);

  const LinkModel model_;
  const std::function<void()> changed_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<StreamReceiver>> receivers_;
  std::vector<std::uint64_t> arriving_;              // by host: the publication whose sums arrive
  std::vector<std::atomic<std::uint64_t>> arrived_;  // by host: one more than the number of the last publication whose sums have arrived
  // By host: memory of sums that arrive for an attempt that this rank has ended.
  std::vector<std::vector<std::vector<std::byte>>> discarded_;

  mutable std::mutex mutex_;
  std::deque<Publication> publications_;  // guarded by mutex_: not sent yet, in order
  std::uint64_t first_ = 0;               // guarded by mutex_: number of publications_[0], counted from 0 by published()
};

}  // namespace shoal::fsdp
