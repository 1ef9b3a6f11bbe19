#include "runtime/net/socket/host_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace shoal::runtime {
namespace {

constexpr int kChecks = 8;  // per time limit; a pause of this process or of its machine counts as one check
constexpr int kProbes = 4;  // for an idle connection: the first after half the time limit, the others until its end
// The kernel counts time in ticks of at most this length. An answer may count at two looks, but none is missed.
constexpr std::chrono::milliseconds kTick(10);

}  // namespace

HostWatch::HostWatch(Clock& clock, int socket, Duration unanswered, std::function<void()> dead)
    : clock_(clock), socket_(socket), unanswered_(unanswered), dead_(std::move(dead)) {
  const auto set = [&](int level, int name, int value) { (void)setsockopt(socket_, level, name, &value, sizeof value); };
  const auto seconds = static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(unanswered).count());
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / (2 * kProbes)));
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  check_later();  // bytes may have been given to the kernel before, by the handshakes
}

void HostWatch::check_later() {
  watching_ = true;
  checked_at_ = clock_.now();
  timer_ = clock_.after(unanswered_ / kChecks, [this] { check(); });
}

void HostWatch::check() {
  watching_ = false;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  // An acknowledgment may leave bytes unacknowledged, if the other kernel has dropped them for lack of room. The other kernel then
  // answers each attempt to send them again, but the attempts become rare. So this check expects an answer only to what was sent after
  // the last answer. If this host has lost its interface or route, an attempt fails here: it changes no time of sending, but counts as a
  // retransmission.
  const bool unacked = info.tcpi_unacked > 0;
  const bool waits =
      info.tcpi_probes > 0 || (unacked && (info.tcpi_last_data_sent < info.tcpi_last_ack_recv || info.tcpi_retransmits > retransmits_));
  const bool any_arrived = std::exchange(arrived_, info.tcpi_segs_in) != info.tcpi_segs_in;
  const bool acknowledged = std::chrono::milliseconds(info.tcpi_last_ack_recv) <= clock_.now() - checked_at_ + kTick;
  const bool answered = unacked && info.tcpi_snd_wnd > 0 ? acknowledged : any_arrived;
  if (answered) retransmits_ = info.tcpi_retransmits;
  num_silent_ = waits && !answered ? num_silent_ + 1 : 0;
  if (num_silent_ >= kChecks) return dead_();
  if (info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0 || info.tcpi_probes > 0) check_later();
}

}  // namespace shoal::runtime
