#include "scheduler/cli/verbs/joining.h"

#include <algorithm>
#include <ctime>

#include "actors/protocol/wire/joining.h"
#include "runtime/net/interfaces.h"
#include "scheduler/cli/session.h"

namespace shoal::scheduler::cli {

using actors::SessionFolder;

Result<std::string> make_certificates(const SessionFolder& folder, const std::string& host, const std::string& authority,
                                      const DataNetwork& network, bool from_token) {
  const auto now = std::time(nullptr);
  actors::SessionTls tls;
  tls.host = host;
  tls.interface = network.interface;
  tls.data_tls = network.tls;
  if (from_token) {
    SHOAL_TRY(const auto token, folder.token());
    SHOAL_TRY(tls.authority, runtime::derive_authority(token.hex()));
  } else if (authority.empty()) {
    SHOAL_TRY(tls.authority, runtime::make_authority("shoal " + folder.name(), runtime::valid_from(now, runtime::kAuthoritySeconds)));
  } else {
    auto read = actors::read_authority(authority);
    if (!read) {
      return fail(
          Error(read.error())
              .with_hint("--authority names a copy of the folder tls/ in the session's folder of the cluster's first head, with ca.pem "
                         "and ca.key"));
    }
    tls.authority = *std::move(read);
  }
  SHOAL_TRY(tls.own, runtime::make_certificate(tls.authority, host, runtime::valid_from(now, runtime::kCertificateSeconds)));
  SHOAL_OK(folder.write_tls(tls));
  SHOAL_TRY(const auto fingerprint, runtime::Fingerprint::from_certificate(tls.authority.certificate));
  return fingerprint.to_string();
}

namespace {

// Creates a session below `root` for a cluster of this host that was started with another root folder. It needs no certificates, because it
// uses loopback.
Result<SessionFolder> join_found(const Common& common, const Found& found) {
  Context context(found.credentials);
  SHOAL_TRY(const auto client, connect_head(context, found));  // checks the token
  SHOAL_TRY(const auto folder, new_session(common.target.root, found.credentials.token));
  const auto filled = folder.write_info({common.target.address, "", std::int64_t{1000} * std::time(nullptr), "", ""});
  if (filled) return folder;
  folder.remove();
  return fail(filled.error());
}

}  // namespace

Result<SessionFolder> join(const Common& common, const std::string& public_host, const Found& found, const DataNetwork& network) {
  SHOAL_TRY(const auto addresses, runtime::parse_endpoints(common.target.address));
  const auto& credentials = found.credentials;
  const bool local = std::all_of(addresses.begin(), addresses.end(), [](const auto& a) { return runtime::is_loopback(a.host); });
  if (local && !credentials.tls) {
    if (!network.interface.empty() || network.tls) {
      return fail(invalid_argument("a cluster on loopback has one host: --interface and --data-tls are for several")
                      .with_hint("start it with: shoal start --head --interface NAME"));
    }
    return join_found(common, found);
  }
  if (!credentials.tls) {
    return fail(invalid_argument("a cluster on another host is joined with the fingerprint of its certificates")
                    .with_reason("TlsRequired")
                    .with_hint("pass --ca-fingerprint sha256:.., as `shoal start --head` printed it"));
  }
  std::string host = public_host;
  if (host.empty()) {
    SHOAL_TRY(host, runtime::own_address_towards(addresses[0].host));
  }
  SHOAL_TRY(const auto request, runtime::make_certificate_request("shoal " + host));
  Context context(credentials);
  SHOAL_TRY(const auto client, connect_head(context, found));
  SHOAL_TRY(const auto answer, client->request_for<actors::SignedCertificate>(actors::Method::kSignCertificate,
                                                                              to_bytes(actors::SignCertificate{request.request, host})));
  // The answer holds the node's certificate, then the authority's.
  const auto second = answer.certificate.rfind("-----BEGIN CERTIFICATE-----");
  if (network.tls && !answer.data_tls) {
    return fail(invalid_argument("the cluster's head was started without --data-tls")
                    .with_reason("DataTls")
                    .with_hint("start the head with --data-tls; hosts that join need no such option"));
  }
  actors::SessionTls tls{{second == std::string::npos ? "" : answer.certificate.substr(second), ""},
                         {answer.certificate, request.key},
                         host,
                         network.interface,
                         answer.data_tls};
  SHOAL_OK(runtime::Tls::make(credentials.tls->authority(), tls.own));
  SHOAL_TRY(const auto folder, new_session(common.target.root, credentials.token));
  const auto filled = [&]() -> Result<void> {
    SHOAL_OK(folder.write_tls(tls));
    return folder.write_info({common.target.address, "", std::int64_t{1000} * std::time(nullptr), "", ""});
  }();
  if (filled) return folder;
  folder.remove();
  return fail(filled.error());
}

std::string describe_network(const actors::Credentials& credentials) {
  const auto interface = runtime::find_interface(credentials.host);
  return (interface ? interface->name + " (" + credentials.host + ")" : credentials.host) +
         " for control and data; data between hosts in " + (credentials.data_tls ? "TLS" : "clear text");
}

}  // namespace shoal::scheduler::cli
