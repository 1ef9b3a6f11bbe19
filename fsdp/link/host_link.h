// The connection of one rank's model with the ranks on other hosts.
//
// Each host has the control words, slots and arenas of all ranks, so gate, reducer, leases and waits are the same as on one host. A
// HostLink keeps them up to date:
//   - control words: every rank sends its own to one partner on each other host, which stores them;
//   - rows of a version, from their owner, after the owner's words say that they are final (rows_exchange.h);
//   - sums of gradients, to their owners (sums_exchange.h).
// The link's thread does this while the ranks compute. It sleeps until a message arrives, or until this rank has something to send. A rank
// on another host whose connection ends before the rank has left is marked as gone on this host's membership page.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/link/rows_exchange.h"
#include "fsdp/link/sums_exchange.h"
#include "fsdp/link/updates.h"
#include "fsdp/protocol/remote_sums.h"
#include "runtime/core/owner_process.h"

namespace shoal::fsdp {

class HostLink final : public RemoteSums {
 public:
  // `layer`: messages among all ranks of the model; the link's thread drives it.
  HostLink(LinkModel model, std::shared_ptr<runtime::MessageLayer> layer, std::shared_ptr<runtime::Clock> clock);
  // Ends as leave() does.
  ~HostLink() override;

  // ---- the thread that runs the model ----
  // Sends this rank's control words, if they have changed. Called after stores that another rank may wait for.
  void update();
  // Sends this rank's rows of a version, in this order of units. The rank's word `entered` has that version already.
  void send_rows(std::uint64_t version, const std::vector<std::uint32_t>& order) {
    rows_.send(version, order);
    layer_->wake();
  }
  bool rows_sent() const { return rows_.sent(); }
  // The first rank of this replica on another host whose rows of a unit have not arrived in this version; -1: none.
  int missing_rows(std::size_t unit, std::uint64_t version) const;
  // Reports to ranks on other hosts that no rank's wait can end.
  void report_stuck() { post(encode(UpdateKind::kStuck)); }

  // ---- any thread ----
  // Wakes the link's thread, which reads this host's memory again. For example, it then informs other hosts of ranks that are gone.
  void wake() { layer_->wake(); }
  // Sends what is queued, to ranks that can be reached, and ends the link. Idempotent. A forked child only forgets the link.
  void leave();

  void published(std::uint64_t sequence, std::uint32_t unit, bool everywhere) override;
  bool sent(std::uint64_t sequence) const override { return sums_.sent(sequence); }
  int missing_sender(std::uint64_t sequence) const override { return sums_.missing_sender(sequence); }
  void drop() override { sums_.drop(); }

 private:
  using Transfer = runtime::MessageLayer::Transfer;
  enum class To { kHosts, kThisHost };  // kHosts: one rank of each other host; kThisHost: the other ranks of this host
  struct Posted {
    std::vector<std::byte> message;
    To to;
  };
  struct Sending {
    std::vector<std::byte> message;
    Transfer transfer;
  };
  // Updates from one rank.
  struct Source {
    int rank;
    std::vector<std::byte> message;
    Transfer transfer;
    bool ended = false;
  };

  void post(std::vector<std::byte> message, To to = To::kHosts);
  void notify_all() { model_.control.membership_page().notify_all(); }
  void run();
  // A result of true means progress.
  bool send_posted();
  bool take_updates();
  void receive(Source& source);
  void store(int rank, const Update& update);
  bool drop_sent();
  // Informs other hosts of ranks of this host that are gone, and marks ranks of other hosts whose connection has ended.
  void check_gone(bool progress);
  // True when all queued messages are sent, and this host has all data that it gets through this rank.
  bool idle();

  const LinkModel model_;
  std::shared_ptr<runtime::MessageLayer> layer_;
  const std::shared_ptr<runtime::Clock> clock_;
  RowsExchange rows_;
  SumsExchange sums_;
  std::optional<Words> last_words_;  // the words that were sent last; for the model's thread only

  // For the link's thread only.
  std::list<Sending> sending_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::optional<runtime::TimePoint>> lost_since_;  // by rank of another host whose connection has ended
  std::vector<bool> reported_;                                 // by rank of this host: its end is reported

  std::mutex mutex_;
  std::deque<Posted> posted_;  // guarded by mutex_
  std::atomic<bool> leaving_{false}, ended_{false};
  const OwnerProcess process_;
  std::thread thread_;
};

}  // namespace shoal::fsdp
