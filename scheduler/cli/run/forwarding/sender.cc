#include "scheduler/cli/run/forwarding/sender.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/loop/random.h"
#include "scheduler/cli/client.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/run/forwarding/pace.h"
#include "scheduler/cli/run/forwarding/source.h"
#include "scheduler/runs/files.h"

namespace shoal::scheduler::cli {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr auto kTick = milliseconds(20);  // interval at which the thread checks whether it has to end
// Interval of messages while there are no new bytes: at its end the first host waits for hosts that still send.
constexpr auto kSignOfLife = milliseconds(500);
constexpr auto kReconnect = seconds(1);
constexpr auto kAnswerLimit = seconds(10);
constexpr auto kNoRoom = seconds(5);  // pause after the first host's disk was full, as long as a process's pause after its own was full
constexpr auto kPatience = seconds(1);
constexpr auto kWarnAfter = seconds(15);  // longer than the cluster takes to give up a host whose link is cut: that needs no warning

}  // namespace

std::string RecordPlace::to_text() const {
  return nlohmann::json({{"address", address}, {"mark", mark}, {"folder", folder}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<RecordPlace> RecordPlace::parse(const std::string& text) {
  const auto in = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&](const char* key) {
    return in.is_object() && in.contains(key) && in[key].is_string() ? in[key].get<std::string>() : "";
  };
  RecordPlace out{field("address"), field("mark"), field("folder")};
  if (out.address.empty() || out.mark.empty() || !out.folder.starts_with("/")) return {};
  return out;
}

class RunFilesSender::Work {
 public:
  Work(const actors::Credentials& credentials, RecordPlace place, const std::string& host, std::int64_t since_us)
      : credentials_(credentials), place_(std::move(place)), source_(place_.folder, host, since_us) {}

  void run() {
    send_until_end();
    client_.reset();
    context_.reset();
    ended_.set_value();
  }

  std::atomic<bool> finishes_ = false;  // finish() was called: nothing more will be recorded
  std::atomic<bool> ends_ = false;
  std::shared_future<void> ended() const { return is_ended_; }

 private:
  bool shares_folder() const {
    const Fd folder(::open(place_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return false;
    (void)runs::names_in(folder, 1);  // NFS remembers for a while that a file is not there, and looks again at a listing
    return runs::read_file(folder, kMarkFile, 256) == place_.mark + "\n";
  }

  void send_until_end() {
    if (shares_folder()) return;
    context_ = std::make_unique<Context>(credentials_);
    while (!ends_) {
      const bool last = finishes_;
      const auto begin = context_->clock->now();
      const auto sent = send(last);
      if (sent == Sent::kRefused || (last && sent == Sent::kAll)) return;
      const auto until = begin + (sent == Sent::kNoAnswer ? milliseconds(kReconnect) : milliseconds(Pace::kInterval));
      // finish() hurries the next message, but not the next attempt to connect.
      const auto waits = [&] { return !ends_ && (!finishes_ || sent == Sent::kNoAnswer) && context_->clock->now() < until; };
      while (waits()) context_->run_until([] { return false; }, kTick);
    }
  }

  enum class Sent { kAll, kMore, kNoAnswer, kRefused };
  Sent send(bool last) {
    const auto now = context_->clock->now();
    if (!client_ || client_->closed()) {
      auto connected = Client::connect(*context_, place_.address, runtime::Duration::zero());
      if (!connected) return no_answer(connected.error());
      client_ = std::move(*connected);
    }
    if (last) source_.wake();
    auto batch = source_.read(pace_.budget(), now < no_room_until_ && !last ? RunFilesSource::Which::kLive : RunFilesSource::Which::kAll);
    if (batch.parts.empty() && now - sent_ < kSignOfLife) return Sent::kAll;
    const auto answer = client_->request(actors::Method::kRunFiles, to_bytes(actors::RunFiles{id_, std::move(batch.parts)}), kAnswerLimit,
                                         Bytes::copy_of(batch.bytes));
    sent_ = context_->clock->now();
    if (answer) {
      silent_since_.reset();
      source_.confirm();
      pace_.answered(batch.bytes.size(), sent_ - now);
      return batch.more ? Sent::kMore : Sent::kAll;
    }
    if (answer.error().reason() == "RunFileRefused") {
      if (!shares_folder())
        print(stderr, "shoal: warning: the run's folder on the first host lacks this host: {}\n", answer.error().message());
      return Sent::kRefused;
    }
    if (answer.error().code() == Code::kResourceExhausted) {
      no_room_until_ = sent_ + kNoRoom;
      return Sent::kAll;
    }
    pace_.lost();
    client_.reset();  // the answer has not come in time, or the connection broke
    return no_answer(answer.error());
  }

  Sent no_answer(const Error& why) {
    const auto now = context_->clock->now();
    if (!silent_since_) silent_since_ = now;
    if (now - *silent_since_ >= kWarnAfter && !std::exchange(warned_, true)) {
      print(stderr, "shoal: warning: the run's folder on the first host lacks this host, which tries to reach {}: {}\n", place_.address,
            why.message());
    }
    return Sent::kNoAnswer;
  }

  const actors::Credentials credentials_;
  const RecordPlace place_;
  std::promise<void> ended_;
  const std::shared_future<void> is_ended_ = ended_.get_future().share();

  // ---- the thread's
  std::unique_ptr<Context> context_;
  std::unique_ptr<Client> client_;
  RunFilesSource source_;
  Pace pace_;
  const std::uint64_t id_ = runtime::make_real_random()->next();
  runtime::TimePoint sent_ = {}, no_room_until_ = {};
  std::optional<runtime::TimePoint> silent_since_;  // the first host has not answered since
  bool warned_ = false;
};

RunFilesSender::RunFilesSender(const actors::Credentials& credentials, RecordPlace place, const std::string& host, std::int64_t since_us)
    : work_(std::make_shared<Work>(credentials, std::move(place), host, since_us)) {
  thread_ = std::make_unique<runtime::SideThread>([work = work_] { work->run(); });
}

void RunFilesSender::finish(std::chrono::nanoseconds limit) {
  work_->finishes_ = true;
  work_->ended().wait_for(limit);
}

RunFilesSender::~RunFilesSender() {
  work_->ends_ = true;
  if (work_->ended().wait_for(kPatience) != std::future_status::ready) (void)thread_.release();
}

}  // namespace shoal::scheduler::cli
