#include "scheduler/cli/cluster.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "scheduler/cli/output.h"
#include "scheduler/roles/head_report.h"

namespace shoal::scheduler::cli {

using actors::SessionFolder;

int failed(const Common& common, const Error& e) {
  print_error(e, common.json);
  return exit_code(e);
}

Result<actors::Credentials> credentials_of(const Target& target) {
  std::string text = target.token;
  if (text.empty() && target.token_file.empty()) {
    return fail(invalid_argument("a cluster on another host is reached with its token")
                    .with_reason("TokenRefused")
                    .with_hint("pass --token-file FILE, or set SHOAL_TOKEN_FILE or SHOAL_TOKEN"));
  }
  if (text.empty()) {
    std::ifstream file(target.token_file);
    if (!file) return fail(not_found("no file " + target.token_file));
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  actors::Credentials out;
  auto token = runtime::Token::parse(text);
  if (!token) {
    const std::string from = target.token.empty() ? target.token_file : "SHOAL_TOKEN";
    return fail(
        invalid_argument("there is no token in " + from + ": " + token.error().message())
            .with_reason("TokenRefused")
            .with_hint("it is a copy of the file `token` in the folder of the cluster's session, which `shoal start --head` printed"));
  }
  out.token = *token;
  if (target.fingerprint.empty()) return out;
  SHOAL_TRY(const auto fingerprint, runtime::Fingerprint::parse(target.fingerprint));
  SHOAL_TRY(out.tls, runtime::Tls::make(fingerprint));
  return out;
}

namespace {

Error not_its_token(const std::string& file, const std::string& address, const SessionFolder& folder) {
  return invalid_argument(file + " is not the token of the cluster at " + address)
      .with_reason("TokenRefused")
      .with_hint("leave --token-file out (this host knows the cluster's: " + folder.path() +
                 "/token), or name the cluster of this token with --address");
}

Result<Found> found_in(const Target& target, const SessionFolder& folder, std::string endpoint, std::string address) {
  SHOAL_TRY(auto credentials, folder.credentials());
  if (!target.token_named) return Found{folder, std::move(credentials), std::move(endpoint), std::move(address)};
  SHOAL_TRY(auto named, credentials_of(target));
  if (named.token == credentials.token) return Found{folder, std::move(credentials), std::move(endpoint), std::move(address)};
  // The head at the named address may now be that of another cluster, which accepts the named token.
  if (!target.address.empty()) return Found{std::nullopt, std::move(named), target.address, target.address, folder, target.token_file};
  return fail(not_its_token(target.token_file, address, folder));
}

// The head at the cluster's address refuses the token, or its certificates are not the cluster's.
Error refused(const Found& found, const Error& why) {
  if (why.reason() == "TlsRequired") return why;
  if (found.folder) {
    return Error(why.code(), "another cluster answers at " + found.address + ", in place of this host's in " + found.folder->path() + ": " +
                                 why.message())
        .with_reason(why.reason())
        .with_hint("join it with its own token and fingerprint: shoal start --address " + found.address +
                   " --token-file FILE --ca-fingerprint sha256:..; what is left here of the old one ends by itself, or with: shoal stop");
  }
  if (why.reason() == "TokenRefused" && found.other) return not_its_token(found.token_file, found.address, *found.other);
  return why;
}

// The cluster of this host whose HTTP interface listens at `address`. Ray's job commands name clusters by that address.
Result<SessionFolder> at_http(const std::string& root, const std::string& address) {
  const auto port_of = [](std::string url) {
    url.resize(url.find_last_not_of('/') + 1);
    return url.substr(std::min(url.size(), url.rfind(':') + 1));
  };
  const std::string host = address.substr(address.find("://") + 3, address.rfind(':') - address.find("://") - 3);
  for (const auto& folder : SessionFolder::running(root)) {
    const auto info = folder.info();
    if (info && !info->http.empty() && port_of(info->http) == port_of(address) && (host == "127.0.0.1" || host == "localhost"))
      return folder;
  }
  return fail(unavailable("no running cluster of this user has its HTTP interface at " + address)
                  .with_reason("NoCluster")
                  .with_hint("it is on loopback only: run this on the head's host, or use shoal.job_submission over a tunnel"));
}

struct Candidate {
  SessionFolder folder;
  std::string endpoint, address;
};

}  // namespace

Result<Found> find_cluster(const Target& target, bool exactly) {
  if (target.address.find("://") != std::string::npos) {
    SHOAL_TRY(const auto folder, at_http(target.root, target.address));
    SHOAL_TRY(const auto info, folder.info());
    return found_in(target, folder, info.way(), info.head.empty() ? info.head_local : info.head);
  }
  if (!target.address.empty()) {
    SHOAL_OK(runtime::parse_endpoints(target.address));
    const auto folder = SessionFolder::at_address(target.root, target.address);
    if (folder) {
      const auto info = folder->info();
      return found_in(target, *folder, info && !info->store.empty() ? info->way() : target.address, target.address);
    }
    if (target.token.empty() && target.token_file.empty() && target.fingerprint.empty()) return fail(folder.error());
    SHOAL_TRY(auto credentials, credentials_of(target));
    return Found{std::nullopt, std::move(credentials), target.address, target.address};
  }
  std::vector<Candidate> found, others;
  for (const auto& folder : SessionFolder::running(target.root)) {
    const auto info = folder.info();
    if (!info) continue;
    (folder.is_private() ? others : found).push_back({folder, info->way(), info->head.empty() ? info->head_local : info->head});
  }
  if (found.empty() && !exactly) found = others;
  // Heads that share a store belong to one cluster, of which the first session is kept.
  std::set<std::string> stores;
  std::erase_if(found, [&](const Candidate& f) {
    const auto info = f.folder.info();
    return info && !info->store.empty() && !stores.insert(info->store).second;
  });
  if (found.empty()) return fail(actors::no_cluster(target.root));
  if (exactly && found.size() > 1) {
    std::string list;
    for (const auto& f : found) list += "\n    --address " + f.address;
    return fail(
        invalid_argument(std::to_string(found.size()) + " clusters are running; name one of them:" + list).with_reason("SeveralClusters"));
  }
  return found_in(target, found.front().folder, found.front().endpoint, found.front().address);
}

Result<SessionFolder> session_of(const Found& found) {
  if (found.folder) return *found.folder;
  if (found.other) return fail(not_its_token(found.token_file, found.address, *found.other));
  return fail(invalid_argument(found.address + " does not run on this host")
                  .with_reason("Usage")
                  .with_hint("run this on the host where it was started; on a host that joined, it ends the processes of that host"));
}

Result<std::unique_ptr<Client>> connect_head(Context& context, const Found& found) {
  auto client = Client::connect(context, found.endpoint);
  if (!client && is_refusal(client.error())) return fail(refused(found, client.error()));
  if (client || client.error().code() != Code::kUnavailable || client.error().reason() == "HungUp") return client;
  const Error& why = client.error();
  const std::string at = found.address == found.endpoint ? "" : " (tried: " + found.endpoint + ")";
  const auto failure = found.folder ? failed_head_start(found.folder->path()) : std::nullopt;
  if (failure) {
    return fail(unavailable("the head at " + found.address + " does not start: " + failure->message())
                    .with_reason(why.reason())
                    .with_hint((failure->hint().empty() ? "" : failure->hint() + "; ") + "its logs: " + found.folder->logs()));
  }
  auto out = unavailable("no head answers at " + found.address + at + ": " + why.message()).with_reason(why.reason());
  const auto info = found.folder ? found.folder->info() : Result<actors::SessionInfo>(fail(why));
  const bool joined = info && info->head_local.empty();  // the head is on another host
  return fail(std::move(out).with_hint(
      joined ? "this host's node waits for it up to --head-absence-limit, then ends; the logs on its host say why. `shoal stop --address " +
                   found.address + "` ends this host's part now"
      : found.folder
          ? "it is gone and was not started again; why: " + found.folder->logs() + ". `shoal stop --address " + found.address +
                "` ends what is left of that cluster, `shoal start --head` begins another"
          : "check whether the address is the one that `shoal start --head` printed, whether that cluster still runs (`shoal status` on "
            "its host), and whether a firewall on the way blocks its port"));
}

Result<ClusterConnection> connect_cluster(const Common& common) {
  SHOAL_TRY(const Found found, find_cluster(common.target, false));
  ClusterConnection out;
  out.context = std::make_unique<Context>(found.credentials);
  SHOAL_TRY(out.head, connect_head(*out.context, found));
  out.address = found.address;
  out.over_hosts = found.credentials.tls != nullptr;
  out.host = found.credentials.host;
  out.endpoint = found.endpoint;
  if (found.folder) out.logs = found.folder->logs();
  return out;
}

}  // namespace shoal::scheduler::cli
