#include "actors/session/folder/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/core/fd.h"
#include "runtime/core/id.h"
#include "runtime/process/process.h"

namespace shoal::actors {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

Result<void> make_private_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail(from_errno(errno, "cannot make " + path));
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return fail(from_errno(errno, path));
  const bool own = S_ISDIR(info.st_mode) && info.st_uid == geteuid();
  if (!own || (info.st_mode & 077) != 0) {
    const std::string mend = own ? "chmod 700 " + path : "remove it";
    return fail(invalid_argument(path + " is not a private folder of this user").with_hint(mend + ", or set SHOAL_HOME to another folder"));
  }
  return {};
}

// Writes a file, readable by this user only, as a whole or not at all.
Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return fail(from_errno(errno, "cannot write " + fresh));
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fail(from_errno(errno ? errno : ENOSPC, fresh));
  if (rename(fresh.c_str(), path.c_str()) != 0) return fail(from_errno(errno, "cannot write " + path));
  return {};
}

// True for a folder that create() made. $SHOAL_HOME may contain other things, which must not be removed.
bool is_session(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename();
  static constexpr std::string_view kShape = "dddddddd-dddddd-xxxxxxxx";  // the form of the names that create() makes
  if (name.size() != kShape.size() || !entry.is_directory() || entry.is_symlink()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool fits = kShape[i] == 'd'   ? std::isdigit(static_cast<unsigned char>(name[i])) != 0
                      : kShape[i] == 'x' ? std::isxdigit(static_cast<unsigned char>(name[i])) != 0
                                         : name[i] == '-';
    if (!fits) return false;
  }
  return fs::exists(entry.path() / "token") && fs::is_directory(entry.path() / "pids");
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(not_found("file " + path + " does not exist"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Names this host and its pid namespace, because hosts and containers may share a root folder.
std::string host_of_pids() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::error_code ignored;
  return fmt::format("{} {}\n", host, fs::read_symlink("/proc/self/ns/pid", ignored).string());
}

// True if the folder's `host` file names this host, or does not exist. False if the file cannot be read.
bool is_of_this_host(const fs::path& folder) {
  std::error_code why;
  if (!fs::exists(folder / "host", why)) return !why;
  const auto host = read_file(folder / "host");
  return host && *host == host_of_pids();
}

}  // namespace

Result<std::string> SessionFolder::root(const char* shoal_home) {
  const std::string path = shoal_home != nullptr && *shoal_home ? shoal_home : fmt::format("/tmp/shoal-{}", geteuid());
  SHOAL_OK(make_private_folder(path));
  return path;
}

Result<SessionFolder> SessionFolder::create(const std::string& root, const runtime::Token& token, std::int64_t unix_ms,
                                            std::uint64_t unique) {
  std::vector<fs::path> ended;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (!is_session(entry) || !is_of_this_host(entry.path())) continue;
    if (SessionFolder(entry.path()).processes().empty()) ended.push_back(entry.path());
  }
  std::sort(ended.begin(), ended.end());  // names begin with the time
  for (std::size_t i = 0; i + kKeep < ended.size(); ++i) fs::remove_all(ended[i], ignored);

  const std::time_t seconds = unix_ms / 1000;
  char when[32];
  std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::gmtime(&seconds));
  // Names sort by time, so of two sessions the later one comes last.
  SessionFolder out(fmt::format("{}/{}-{:03x}{}", root, when, unix_ms % 1000, hex(unique).substr(11)));
  SHOAL_OK(make_private_folder(out.path_));
  SHOAL_OK(make_private_folder(out.path_ + "/pids"));
  SHOAL_OK(make_private_folder(out.path_ + "/logs"));
  SHOAL_OK(write_file(out.path_ + "/host", host_of_pids()));
  SHOAL_OK(write_file(out.path_ + "/token", token.hex() + "\n"));
  return out;
}

Result<SessionFolder> SessionFolder::open(const std::string& path) {
  if (!fs::exists(path + "/token")) return fail(not_found(path + " is no session folder"));
  return SessionFolder(path);
}

std::vector<SessionFolder> SessionFolder::running(const std::string& root) {
  std::vector<SessionFolder> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const SessionFolder folder(entry.path());
    if (entry.is_directory() && !folder.processes().empty()) out.push_back(folder);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path_ > b.path_; });
  return out;
}

std::vector<SessionFolder> SessionFolder::shared(const std::string& root) {
  auto out = running(root);
  std::erase_if(out, [](const SessionFolder& folder) { return folder.is_private() || folder.ending() || !folder.info(); });
  return out;
}

namespace {

// The first words of a hint, if this host's latest session has ended because its node had no head any more; else "".
std::string end_of_latest(const std::string& root) {
  std::string latest;  // names begin with the time
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (is_session(entry) && is_of_this_host(entry.path())) latest = std::max(latest, entry.path().string());
  }
  const auto last = SessionFolder::open(latest);
  const std::string why = last && last->processes().empty() ? read_orphaned(*last) : "";
  return why.empty() ? "" : "this host's node ended by itself: " + why + " (see " + last->logs() + "); ";
}

// The hint of the error for an address at which this user has no session.
std::string way_to(const std::string& root, const std::string& address) {
  std::string out = end_of_latest(root);
  std::string others;
  for (const auto& folder : SessionFolder::shared(root)) {
    const auto info = folder.info();
    if (info) others += (others.empty() ? "" : ", ") + (info->head.empty() ? info->head_local : info->head);
  }
  if (!others.empty()) out += "there is " + others + "; ";
  const auto at = runtime::parse_endpoints(address);
  const bool loopback_only =
      at && std::all_of(at->begin(), at->end(), [](const auto& e) { return e.is_unix() || runtime::is_loopback(e.host); });
  out +=
      loopback_only
          ? "one of this host that was started elsewhere is joined with `shoal start --address " + address +
                " --token-file FILE`, where FILE is `token` in its session's folder"
          : "if it is on other hosts: a command reaches it with --token-file FILE --ca-fingerprint sha256:.., a program runs on hosts that "
            "are of it, which `shoal start --address " +
                address + "` with the same two makes this one";
  return out + "; sessions were looked for in " + root + " (SHOAL_HOME)";
}

// True if one of the `wanted` endpoints is an address of the cluster. On a host that joined, the session folder names heads of other hosts,
// each perhaps as a list of addresses.
bool is_at(const SessionInfo& info, const std::vector<runtime::Endpoint>& wanted) {
  std::vector<std::string> texts = info.heads;
  texts.insert(texts.end(), {info.head, info.head_local});
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    const auto own = runtime::parse_endpoints(text);
    return own &&
           std::any_of(own->begin(), own->end(), [&](const auto& e) { return std::find(wanted.begin(), wanted.end(), e) != wanted.end(); });
  });
}

}  // namespace

Error no_cluster(const std::string& root) {
  return unavailable("no cluster is running")
      .with_reason("NoCluster")
      .with_hint(end_of_latest(root) + "`shoal start --head` starts one; SHOAL_HOME names the folder of sessions");
}

Result<SessionFolder> SessionFolder::at_address(const std::string& root, const std::string& address) {
  const bool any = address == "auto";
  std::vector<runtime::Endpoint> wanted;
  if (!any) {
    SHOAL_TRY(wanted, runtime::parse_endpoints(address));
  }
  for (const auto& folder : any ? shared(root) : running(root)) {
    const auto info = folder.info();
    if (info && (any || is_at(*info, wanted))) return folder;
  }
  if (any) return fail(no_cluster(root));
  return fail(
      unavailable("no running cluster of this user has the address " + address).with_reason("NoCluster").with_hint(way_to(root, address)));
}

Result<runtime::Token> SessionFolder::token() const {
  const auto text = read_file(path_ + "/token");
  auto token = text ? runtime::Token::parse(*text) : Result<runtime::Token>(fail(text.error()));
  if (token) return token;
  return fail(invalid_argument("the cluster's token cannot be used: " + path_ + "/token: " + token.error().message())
                  .with_reason("TokenRefused")
                  .with_hint("only the user who started the cluster can read it; `shoal stop` ends a cluster without it"));
}

Result<void> SessionFolder::write_http_token(const std::string& token) const { return write_file(http_token_file(), token + "\n"); }
Result<void> SessionFolder::write_page_token(const std::string& token) const { return write_file(page_token_file(), token + "\n"); }

Result<void> SessionFolder::write_metrics_target(const std::string& http) const {
  const json targets =
      json::array({{{"targets", {http.substr(http.rfind('/') + 1)}}, {"labels", {{"__metrics_path__", "/metrics"}, {"cluster", name()}}}}});
  return write_file(metrics_targets_file(), targets.dump() + "\n");
}

bool SessionFolder::has_tls() const {
  std::error_code ignored;
  return fs::exists(path_ + "/tls/host", ignored);
}

Result<void> SessionFolder::write_tls(const SessionTls& tls) const {
  const std::string folder = path_ + "/tls/";
  SHOAL_OK(make_private_folder(path_ + "/tls"));
  SHOAL_OK(write_file(folder + "ca.pem", tls.authority.certificate));
  if (!tls.authority.key.empty()) SHOAL_OK(write_file(folder + "ca.key", tls.authority.key));
  SHOAL_OK(write_file(folder + "node.pem", tls.own.certificate));
  SHOAL_OK(write_file(folder + "node.key", tls.own.key));
  SHOAL_OK(write_file(folder + "network.json", json({{"interface", tls.interface}, {"data_tls", tls.data_tls}}).dump() + "\n"));
  // Written last, since has_tls() looks for this file.
  return write_file(folder + "host", tls.host);
}

Result<runtime::KeyedCertificate> read_authority(const std::string& folder) {
  runtime::KeyedCertificate out;
  SHOAL_TRY(out.certificate, read_file(folder + "/ca.pem"));
  SHOAL_TRY(out.key, read_file(folder + "/ca.key"));
  return out;
}

Result<runtime::KeyedCertificate> SessionFolder::authority() const { return read_authority(path_ + "/tls"); }

Result<Credentials> SessionFolder::credentials() const {
  Credentials out;
  SHOAL_TRY(out.token, token());
  if (!has_tls()) return out;
  const std::string folder = path_ + "/tls/";
  runtime::KeyedCertificate own;
  SHOAL_TRY(const std::string authority, read_file(folder + "ca.pem"));
  SHOAL_TRY(own.certificate, read_file(folder + "node.pem"));
  SHOAL_TRY(own.key, read_file(folder + "node.key"));
  SHOAL_TRY(out.host, read_file(folder + "host"));
  SHOAL_TRY(const std::string network, read_file(folder + "network.json"));
  const auto chosen = json::parse(network, nullptr, false);
  const auto value = [&](const char* key) { return chosen.is_object() ? chosen.value(key, json()) : json(); };
  if (!value("interface").is_string() || !value("data_tls").is_boolean()) return fail(data_loss(folder + "network.json is damaged"));
  out.interface = value("interface");
  out.data_tls = value("data_tls");
  SHOAL_TRY(const auto fingerprint, runtime::Fingerprint::from_certificate(authority));
  auto tls = runtime::Tls::make(fingerprint, own);
  if (!tls) return fail(Error(tls.error()).in("reading " + folder));
  out.tls = *std::move(tls);
  return out;
}

Result<void> SessionFolder::write_info(const SessionInfo& info) const {
  json j = {{"head", info.head},
            {"head_local", info.head_local},
            {"started_unix_ms", info.started_unix_ms},
            {"http", info.http},
            {"node", info.node}};
  if (!info.store.empty()) {
    j["store"] = info.store;
    j["heads"] = info.heads;
    j["store_since"] = info.store_since;
  }
  return write_file(path_ + "/info.json", j.dump(2) + "\n");
}

Result<SessionInfo> SessionFolder::info() const {
  SHOAL_TRY(const std::string text, read_file(path_ + "/info.json"));
  const auto j = json::parse(text, nullptr, false);
  const auto is = [&](const char* key, auto&& type) { return j.is_object() && j.contains(key) && (j[key].*type)(); };
  if (!is("head", &json::is_string) || !is("head_local", &json::is_string) || !is("started_unix_ms", &json::is_number_integer)) {
    return fail(data_loss(path_ + "/info.json is damaged"));
  }
  SessionInfo out{j["head"],
                  j["head_local"],
                  j["started_unix_ms"],
                  is("http", &json::is_string) ? j["http"] : "",
                  is("node", &json::is_string) ? j["node"] : "",
                  "",
                  {},
                  is("store_since", &json::is_number_integer) ? j["store_since"].get<std::int64_t>() : 0};
  if (is("store", &json::is_string)) out.store = j["store"];
  if (!is("heads", &json::is_array)) return out;
  for (const auto& head : j["heads"]) {
    if (head.is_string()) out.heads.push_back(head);
  }
  return out;
}

std::string SessionInfo::way() const {
  std::string out = head_local.empty() ? head : head_local;
  for (const auto& h : heads) out += "," + h;
  return out;
}

Result<void> SessionFolder::enter(const std::string& role, pid_t pid) const {
  return write_file(fmt::format("{}/pids/{}.{}", path_, role, pid), std::to_string(runtime::start_time(pid)));
}

void SessionFolder::leave(const std::string& role, pid_t pid) const {
  std::error_code ignored;
  fs::remove(fmt::format("{}/pids/{}.{}", path_, role, pid), ignored);
}

bool SessionFolder::entered(const std::string& role, pid_t pid) const {
  std::error_code ignored;
  return fs::exists(fmt::format("{}/pids/{}.{}", path_, role, pid), ignored);
}

Result<void> SessionFolder::set_ending() const { return write_file(path_ + "/ending", ""); }

bool SessionFolder::ending() const {
  std::error_code ignored;
  return fs::exists(path_ + "/ending", ignored);
}

Result<void> write_orphaned(const SessionFolder& folder, const std::string& why) {
  return write_file(folder.path() + "/orphaned", why + "\n");
}

std::string read_orphaned(const SessionFolder& folder) {
  std::string why = read_file(folder.path() + "/orphaned").value_or("");
  return why.substr(0, why.find('\n'));
}

std::vector<SessionProcess> SessionFolder::processes() const {
  std::vector<SessionProcess> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_ + "/pids", ignored)) {
    const std::string name = entry.path().filename();
    const auto dot = name.find('.');
    if (dot == std::string::npos || name.ends_with(".new")) continue;
    const auto pid = static_cast<pid_t>(std::strtol(name.c_str() + dot + 1, nullptr, 10));
    const auto started = read_file(entry.path());
    const auto now = runtime::start_time(pid);
    if (pid > 1 && started && now != 0 && *started == std::to_string(now)) out.push_back({name.substr(0, dot), pid});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return out;
}

bool SessionFolder::is_private() const {
  const auto members = processes();
  return std::any_of(members.begin(), members.end(), [](const auto& p) { return p.role == "local"; });
}

void SessionFolder::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shoal::actors
