#include "scheduler/cli/run/forwarding/receiver.h"

#include <algorithm>
#include <future>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "actors/protocol/wire/method.h"
#include "actors/protocol/wire/run_files.h"
#include "runtime/net/peer.h"
#include "scheduler/cli/client.h"
#include "scheduler/cli/run/forwarding/copy.h"

namespace shoal::scheduler::cli {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr auto kTick = milliseconds(50);  // interval at which the thread checks whether it has to end
constexpr auto kSends = seconds(2);       // how long a host counts as sending after a message; it sends at least two per second
constexpr auto kPatience = seconds(1);
constexpr std::size_t kMostHosts = 10'000;  // connections
constexpr const char* kRefused = "RunFileRefused";
}  // namespace

class RunFilesReceiver::Work final : public runtime::PeerHandler {
 public:
  Work(const actors::Credentials& credentials, const std::string& folder) : context_(credentials), copy_(folder) {}

  // Before the thread begins. Returns HOST:PORT.
  Result<std::string> listen(const std::string& host) {
    SHOAL_TRY(listener_, context_.network.listen(runtime::Endpoint::tcp(host, 0),
                                                 [this](std::unique_ptr<runtime::Connection> connection) { add(std::move(connection)); }));
    return listener_->endpoint().to_string();
  }

  void run() {
    while (!ends_) {
      context_.run_until([] { return false; }, kTick);
      const auto now = context_.clock->now();
      receives_ = std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& h) { return now - h.second.last < kSends; });
    }
    listener_.reset();
    hosts_.clear();
    ended_.set_value();
  }

  std::atomic<bool> ends_ = false, receives_ = false;
  std::shared_future<void> ended() const { return is_ended_; }

 private:
  struct Host {
    std::unique_ptr<runtime::Peer> peer;
    runtime::TimePoint last;
  };

  void add(std::unique_ptr<runtime::Connection> connection) {
    if (hosts_.size() >= kMostHosts) return;
    const auto number = ++num_hosts_;
    auto& host = hosts_[number];
    host.last = context_.clock->now();
    receives_ = true;
    host.peer = std::make_unique<runtime::Peer>(std::move(connection), *context_.clock, *this, number);
  }

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override {
    if (request.method != actors::number(actors::Method::kRunFiles)) {
      responder.fail(unimplemented("the first host of a run takes parts of its record only"));
      return;
    }
    hosts_[peer.number()].last = context_.clock->now();
    const auto files = actors::from_bytes<actors::RunFiles>(request.message.body);
    if (!files) return responder.fail(Error(files.error()).with_reason(kRefused));
    // A sender that got no answer connects again. Its old connection may yet deliver a message, which would undo newer rows.
    auto& newest = newest_[files->sender];
    if (peer.number() < newest) return responder.fail(unavailable("this host has a newer connection"));
    newest = peer.number();
    const auto written = copy_.write(*files, request.message.payload.view());
    if (written) return responder.reply({});
    // Reports any error of the disk as a lack of room: the sender then tries again, since the disk may be mended while the run goes on.
    const bool is_refusal = written.error().reason() == kRefused;
    responder.fail(is_refusal ? written.error() : resource_exhausted(written.error().message()));
  }
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer& peer, const Error&) override { hosts_.erase(peer.number()); }

  Context context_;
  RunFilesCopy copy_;
  std::unique_ptr<runtime::Listener> listener_;
  std::map<std::uint64_t, Host> hosts_;  // by number of the connection
  std::uint64_t num_hosts_ = 0;
  std::map<std::uint64_t, std::uint64_t> newest_;  // by sender: the number of its newest connection
  std::promise<void> ended_;
  const std::shared_future<void> is_ended_ = ended_.get_future().share();
};

Result<std::unique_ptr<RunFilesReceiver>> RunFilesReceiver::start(const actors::Credentials& credentials, const std::string& folder) {
  auto work = std::make_shared<Work>(credentials, folder);
  SHOAL_TRY(auto address, work->listen(credentials.host));
  try {
    return std::unique_ptr<RunFilesReceiver>(new RunFilesReceiver(std::move(work), std::move(address)));
  } catch (const std::system_error& error) {  // the limit of processes is reached
    return fail(resource_exhausted(fmt::format("no thread: {}", error.what())));
  }
}

RunFilesReceiver::RunFilesReceiver(std::shared_ptr<Work> work, std::string address) : work_(std::move(work)), address_(std::move(address)) {
  thread_ = std::make_unique<runtime::SideThread>([run = work_] { run->run(); });
}

RunFilesReceiver::~RunFilesReceiver() {
  work_->ends_ = true;
  if (work_->ended().wait_for(kPatience) != std::future_status::ready) (void)thread_.release();
}

bool RunFilesReceiver::receives() const { return work_->receives_; }

}  // namespace shoal::scheduler::cli
