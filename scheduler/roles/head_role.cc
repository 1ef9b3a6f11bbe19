// The head's main function: the only head of its cluster, or one of several.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "scheduler/etcd/candidacy.h"
#include "scheduler/roles/head_report.h"
#include "scheduler/roles/role_process.h"

namespace shoal::scheduler {

using actors::SessionInfo;
using nlohmann::json;
using runtime::Endpoint;

namespace {

Error with_port_hint(Error e) {
  return e.reason() == "AddressInUse" ? std::move(e).with_hint("choose another with --port, or 0 for any free one") : std::move(e);
}

// A head that leads, with its HTTP interface. Both serve until this object ends.
struct Serving {
  std::unique_ptr<Head> head;
  std::unique_ptr<Http> http;  // destroyed first
};

Result<Serving> serve(RoleProcess& w, const HeadRole& role, Store& store, Head::Options options, SessionInfo& info) {
  Serving out;
  out.head = std::make_unique<Head>(*w.clock, *w.random, w.network, store, w.log, std::move(options));
  if (const auto started = out.head->start(); !started) return fail(with_port_hint(started.error()));
  info.head = out.head->endpoints()[0].to_string();
  info.head_local = out.head->endpoints()[1].to_string();
  if (role.http.on) {
    SHOAL_TRY(out.http, Http::start(w, role.http, out.head->endpoints()[1]));
    info.http = out.http->address();
  }
  SHOAL_OK(w.folder.write_info(info));
  return out;
}

// A head that HeadKeeper starts reports to no process, so the reason goes into its log and the session's folder.
int refuse_head(RoleProcess& w, int ready_fd, const Error& why) {
  w.log->warn("head not started: {}{}", why.message(), why.hint().empty() ? "" : " (" + why.hint() + ")");
  note_head_start(w.folder.path(), why);
  return refuse_role(ready_fd, why);
}

// Signs the certificates of joining hosts, where the session has an authority.
void sign_with_authority(RoleProcess& w, Head::Options& options) {
  if (!w.folder.has_tls()) return;
  options.sign = [&w](const actors::SignCertificate& request) -> Result<actors::SignedCertificate> {
    SHOAL_TRY(const auto authority, w.folder.authority());
    const auto now = w.clock->unix_millis() / 1000;
    const auto validity = runtime::valid_from(now, runtime::kCertificateSeconds);
    SHOAL_TRY(auto certificate, runtime::sign_certificate(authority, request.request, request.host, validity));
    return actors::SignedCertificate{std::move(certificate), w.credentials.data_tls};
  };
}

int run_alone(RoleProcess& w, const HeadRole& role) {
  auto state = State::open(w, role.fsync);
  if (!state) return refuse_head(w, role.ready_fd, state.error());
  bool over = false;
  auto options = head_options(w);
  options.listen = {Endpoint::tcp(role.host, role.port), local_head(w.folder)};
  sign_with_authority(w, options);
  options.store = role.fsync ? "sqlite, durability fsync" : "sqlite, durability process";
  // Waits a moment, so that the notices to the nodes go out.
  runtime::Timer leaving;
  options.on_ended = [&] { leaving = w.clock->after(std::chrono::milliseconds(20), [&] { over = true; }); };
  {
    SessionInfo info;
    info.started_unix_ms = w.clock->unix_millis();
    const auto serving = serve(w, role, (*state)->store(), std::move(options), info);
    if (!serving) {
      drain(w);
      return refuse_head(w, role.ready_fd, serving.error());
    }
    note_head_start(w.folder.path(), std::nullopt);
    w.on_signal([&] { over = true; });
    report(role.ready_fd, {{"head", info.head}, {"head_local", info.head_local}});
    run_until(w, over);
  }
  w.log->info("head ended");
  drain(w);
  return 0;
}

// Reserves a port by binding it, without listening, until the head listens.
class HeldPort {
 public:
  static Result<HeldPort> hold(const std::string& host, std::uint16_t port) {
    HeldPort out;
    out.fd_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(out.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    if (inet_pton(AF_INET, host == "localhost" ? "127.0.0.1" : host.c_str(), &at.sin_addr) != 1) {
      return fail(invalid_argument("'" + host + "' is not an address at which other hosts reach this one"));
    }
    socklen_t size = sizeof at;
    if (bind(out.fd_.get(), reinterpret_cast<sockaddr*>(&at), size) != 0) {
      auto e = from_errno(errno, "port " + std::to_string(port));
      return fail(with_port_hint(errno == EADDRINUSE ? std::move(e).with_reason("AddressInUse") : std::move(e)));
    }
    getsockname(out.fd_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    out.port_ = ntohs(at.sin_port);
    return out;
  }
  std::uint16_t port() const { return port_; }

 private:
  Fd fd_;
  std::uint16_t port_ = 0;
};

// Identifies token and authority without revealing the token: heads of one cluster have equal fingerprints.
std::string fingerprint(const runtime::Token& token, const std::string& authority) {
  const std::string text = "shoal cluster " + token.hex() + authority;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  std::string out;
  for (unsigned int i = 0; i < 16 && i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

// One of several heads: waits until it leads, then leads until the end. Its process fails (exit code 1) when it loses the lead.
class OneOfSeveral {
 public:
  OneOfSeveral(RoleProcess& process, const HeadRole& role) : w_(process), role_(role), ready_fd_(role.ready_fd) {}

  int run() {
    const auto code = stand();
    if (!code) {
      end();
      return refuse_head(w_, std::exchange(ready_fd_, -1), code.error());
    }
    run_until(w_, over_);
    end();
    w_.log->info(w_.failed ? "head ended: it does not lead" : "head ended");
    return w_.failed ? 1 : 0;
  }

 private:
  Result<void> stand() {
    SHOAL_TRY(address_, etcd::Address::parse(role_.store, role_.store_access));
    SHOAL_TRY(held_, HeldPort::hold(role_.host, role_.port));
    SHOAL_TRY(const auto token, w_.folder.token());
    std::string authority;
    if (w_.folder.has_tls()) {
      SHOAL_TRY(const auto signs, w_.folder.authority());
      SHOAL_TRY(const auto print, runtime::Fingerprint::from_certificate(signs.certificate));
      authority = " " + print.to_string();
    }
    etcd::CandidacyOptions o;
    o.endpoint = Endpoint::tcp(role_.host, held_.port()).to_string();
    o.fingerprint = fingerprint(token, authority);
    o.data_tls = w_.credentials.data_tls;
    if (const auto before = w_.folder.info(); before && before->store == role_.store) o.since = before->store_since;
    o.elected = [this](const etcd::Leadership& leadership) { lead(leadership); };
    o.heads = [this](std::string leader, std::vector<std::string> heads) { heads_are(std::move(leader), std::move(heads)); };
    o.ended = [this] {
      w_.log->info("the cluster ends");
      over_ = true;
    };
    info_ = {o.endpoint, local_head(w_.folder).to_string(), w_.clock->unix_millis(), "", "", role_.store, {}, 0};
    SHOAL_TRY(candidacy_, etcd::Candidacy::make(w_.loop, *w_.clock, *w_.random, w_.log, address_, std::move(o)));
    info_.store_since = candidacy_->since();
    SHOAL_OK(w_.folder.write_info(info_));
    w_.on_signal([this] { over_ = true; });
    w_.log->info("waiting to lead store={} endpoint={}", role_.store, info_.head);
    return {};
  }

  void lead(const etcd::Leadership& leadership) {
    w_.log->info("elected revision={}", leadership.revision);
    auto store = etcd::open_store(w_.loop, *w_.clock, w_.log, address_, leadership);
    if (!store) return not_started(store.error());
    store_ = *std::move(store);
    auto options = head_options(w_);
    options.listen = {Endpoint::tcp(role_.host, held_.port()), local_head(w_.folder)};
    options.store = role_.store;
    sign_with_authority(w_, options);
    options.leads = [this] { return candidacy_->leads(); };
    options.on_fenced = [this] { give_up(unavailable("its lease has ended, or another head has it")); };
    options.on_ending = [this] {
      if (const auto ended = candidacy_->end_cluster(); !ended)
        w_.log->warn("other heads do not learn of the cluster's end: {}", ended.error().message());
    };
    options.on_ended = [this] { leaving_ = w_.clock->after(std::chrono::milliseconds(20), [this] { over_ = true; }); };
    auto serving = serve(w_, role_, *store_, std::move(options), info_);
    if (!serving) return not_started(serving.error());
    serving_ = *std::move(serving);
    w_.log->info("leading");
    heads_are(info_.head, info_.heads);
    ready();
  }

  void heads_are(const std::string& leader, std::vector<std::string> heads) {
    std::erase(heads, leader);
    if (!leader.empty()) heads.insert(heads.begin(), leader);
    info_.heads = std::move(heads);
    (void)w_.folder.write_info(info_);
    if (serving_.head) serving_.head->set_heads(info_.heads);
    if (!leader.empty() && leader != info_.head) ready();  // the leader is found
  }

  // To be called once this head leads, or stands by for a head that leads.
  void ready() {
    note_head_start(w_.folder.path(), std::nullopt);
    report(std::exchange(ready_fd_, -1), {{"head", info_.head}, {"head_local", info_.head_local}});
  }

  void not_started(const Error& why) {
    note_head_start(w_.folder.path(), why);
    give_up(why);
  }

  void give_up(const Error& why) {
    w_.log->warn("this head leads no more: {}", why.message());
    report(std::exchange(ready_fd_, -1), error_json(why));
    w_.failed = true;
    over_ = true;
  }

  // Releases the lease only after all parts of this head have stopped.
  void end() {
    serving_ = {};
    store_.reset();
    drain(w_);
    candidacy_.reset();
  }

  RoleProcess& w_;
  const HeadRole& role_;
  int ready_fd_;
  etcd::Address address_;
  HeldPort held_;
  SessionInfo info_;
  std::unique_ptr<etcd::Candidacy> candidacy_;
  std::unique_ptr<Store> store_;
  Serving serving_;
  runtime::Timer leaving_;
  bool over_ = false;
};

}  // namespace

int run_head(const HeadRole& role) {
  auto process = RoleProcess::make(role.session, "head");
  if (!process) {
    note_head_start(role.session, process.error());
    return refuse_role(role.ready_fd, process.error());
  }
  return role.store.empty() ? run_alone(**process, role) : OneOfSeveral(**process, role).run();
}

}  // namespace shoal::scheduler
