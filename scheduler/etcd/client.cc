#include "scheduler/etcd/client.h"

#include <arpa/inet.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/net/endpoint.h"

namespace shoal::scheduler::etcd {

using nlohmann::json;

namespace {

std::string to_base64(const std::string& bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, 0);  // with OpenSSL's final zero
  const int written = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(bytes.data()),
                                      static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(written));
  return out;
}

std::string from_base64(const std::string& text) {
  std::string out(text.size() / 4 * 3 + 1, 0);
  const int written = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()));
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  out.resize(written < 0 ? 0 : static_cast<std::size_t>(written) - padding);
  return out;
}

// The gateway omits fields that are empty or 0, and writes 64-bit numbers as text.
std::string text_in(const json& object, const char* name) {
  const auto at = object.is_object() ? object.find(name) : object.end();
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}
std::int64_t number_in(const json& object, const char* name) { return std::strtoll(text_in(object, name).c_str(), nullptr, 10); }

std::vector<KeyValue> pairs_in(const json& range) {
  std::vector<KeyValue> out;
  const auto kvs = range.is_object() ? range.find("kvs") : range.end();
  if (kvs == range.end() || !kvs->is_array()) return out;
  for (const auto& kv : *kvs) {
    out.push_back({from_base64(text_in(kv, "key")), from_base64(text_in(kv, "value")), number_in(kv, "create_revision"),
                   number_in(kv, "mod_revision")});
  }
  return out;
}

Result<void> unless_gone(const Result<json>& reply) {
  if (!reply && reply.error().code() != Code::kNotFound) return fail(reply.error());
  return {};
}

// The only conversion of etcd's statuses (gRPC codes) to errors.
Error error_of(const std::string& server, const HttpPost::Reply& reply) {
  const json said = json::parse(reply.body, nullptr, false);
  if (!said.is_object() || !said.contains("code") || !said["code"].is_number_integer()) {
    return invalid_argument(server + " answers with HTTP status " + std::to_string(reply.status) +
                            ": it is not an etcd of version 3.4 or later")
        .with_hint("--store etcd://HOST:PORT/NAME names etcd's client port; use etcds:// where that port speaks TLS");
  }
  const std::string message = "etcd at " + server + ": " + text_in(said, "error");
  // An etcd with users refuses a request that names no user with code 3, which malformed requests get, too. So the error's text decides.
  const int code = message.find("user name is empty") == std::string::npos ? said["code"].get<int>() : 16;
  switch (code) {
    case 3:
      return internal(message);
    case 5:
    case 11:  // the revision was compacted away
      return not_found(message);
    case 7:
    case 16:
      return invalid_argument(message)
          .with_reason("EtcdUsers")
          .with_hint(
              "Shoal uses no users of etcd. Give it an etcd without them (etcdctl auth disable), which only clients with a certificate "
              "reach "
              "(--client-cert-auth): docs/high-availability.md");
    case 8:
      // etcd answers too many requests and a full database with one code, which only their texts distinguish.
      if (message.find("space") == std::string::npos) return unavailable(message);
      return resource_exhausted(message).with_hint(
          "run `etcdctl defrag` and `etcdctl alarm disarm`, or raise etcd's --quota-backend-bytes");
    default:
      return unavailable(message);
  }
}

// Returns true for a loopback address, and for the one name that needs no resolver.
bool is_local(std::string host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  unsigned char bytes[16];
  const bool address = inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
  return runtime::is_loopback(host) && (address || host == "localhost");
}

constexpr std::string_view kClear = "etcd://", kTls = "etcds://";

}  // namespace

std::string Address::text() const {
  std::string out(in_tls() ? kTls : kClear);
  for (std::size_t i = 0; i < servers.size(); ++i) out += (i ? "," : "") + servers[i];
  return out + "/" + cluster;
}

Result<Address> Address::parse(const std::string& text, const Access& access) {
  const auto wrong = [&](const std::string& why, const std::string& hint = "etcd://HOST:PORT[,HOST:PORT]/NAME, or etcds://.. for TLS") {
    return fail(invalid_argument("the store '" + text + "' " + why).with_hint(hint));
  };
  const bool tls = text.starts_with(kTls);
  const std::string_view scheme = tls ? kTls : kClear;
  if (!text.starts_with(scheme)) return wrong("is not a kind of store that Shoal supports");
  const auto& files = access.tls;
  if (tls && (files.authority.empty() || files.certificate.empty() || files.key.empty())) {
    return wrong("needs the certificate of etcd's authority, and a certificate with its key that etcd accepts from this cluster",
                 "--store-ca-file, --store-cert-file and --store-key-file name files in PEM");
  }
  if (!tls && !(files.authority.empty() && files.certificate.empty() && files.key.empty())) {
    return wrong("is reached in clear text, where certificates have no use", "write etcds://, or leave --store-*-file out");
  }
  const auto slash = text.find('/', scheme.size());
  if (slash == std::string::npos) return wrong("names no cluster");
  Address out;
  out.tls = files;
  out.cluster = text.substr(slash + 1);
  const bool plain = std::all_of(out.cluster.begin(), out.cluster.end(),
                                 [](unsigned char c) { return (c < 128 && std::isalnum(c)) || c == '.' || c == '_' || c == '-'; });
  if (out.cluster.empty() || out.cluster.size() > 100 || !plain) return wrong("has an invalid name (use letters, digits, . _ -)");
  for (std::size_t from = scheme.size(); from <= slash;) {
    const auto end = std::min(text.find(',', from), slash);
    const std::string server = text.substr(from, end - from);
    const auto endpoint = runtime::parse_endpoint(server);
    if (!endpoint || endpoint->is_unix()) return wrong("has an invalid server: '" + server + "'");
    if (!tls && !access.in_clear_text && !is_local(endpoint->host)) {
      return fail(
          invalid_argument("the store '" + text + "' has a server beyond this host's loopback, '" + server +
                           "', and no TLS: every process that reaches that etcd could run programs in this cluster")
              .with_reason("TlsRequired")
              .with_hint(
                  "let etcd ask clients for certificates (--client-cert-auth) and pass etcds://.., --store-ca-file, "
                  "--store-cert-file and --store-key-file; or pass --store-in-clear-text if all those processes may run programs here"));
    }
    out.servers.push_back(server);
    from = end + 1;
  }
  return out;
}

std::string end_of(const std::string& prefix) {
  std::string out = prefix;
  ++out.back();  // our prefixes end with '/' or a digit
  return out;
}

json put(const std::string& key, const std::string& value, std::int64_t lease) {
  json out = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease != 0) out["lease"] = std::to_string(lease);
  return {{"request_put", std::move(out)}};
}
json erase(const std::string& key) { return {{"request_delete_range", {{"key", to_base64(key)}}}}; }
json erase_below(const std::string& prefix) {
  return {{"request_delete_range", {{"key", to_base64(prefix)}, {"range_end", to_base64(end_of(prefix))}}}};
}
json range(const std::string& key) { return {{"request_range", {{"key", to_base64(key)}}}}; }
json range_below(const std::string& prefix) {
  return {{"request_range", {{"key", to_base64(prefix)}, {"range_end", to_base64(end_of(prefix))}}}};
}
json if_created_at(const std::string& key, std::int64_t revision) {
  return {{"key", to_base64(key)}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", std::to_string(revision)}};
}
json if_value(const std::string& key, const std::string& value) {
  return {{"key", to_base64(key)}, {"target", "VALUE"}, {"result", "EQUAL"}, {"value", to_base64(value)}};
}

Result<std::unique_ptr<Client>> Client::open(const Address& address, runtime::Duration timeout) {
  SHOAL_TRY(auto http, HttpPost::make(address.tls));
  return std::unique_ptr<Client>(new Client(address, std::move(http), timeout));
}

Result<json> Client::post(const std::string& path, const json& body) {
  const std::string text = body.dump();
  Error last = unavailable("no etcd answers");
  for (std::size_t i = 0; i < address_.servers.size(); ++i) {
    const std::string& server = address_.servers[at_ % address_.servers.size()];
    const auto reply = http_->post((address_.in_tls() ? "https://" : "http://") + server + "/v3/" + path, text, timeout_);
    if (reply && reply->status == 200) {
      json out = json::parse(reply->body, nullptr, false);
      if (out.is_object()) return out;
      last = invalid_argument(server + " does not answer in JSON: it is not an etcd");
    } else {
      last = reply ? error_of(server, *reply) : Error(reply.error());
    }
    if (last.code() != Code::kUnavailable) return fail(last);
    ++at_;
  }
  return fail(last);
}

Result<TxnReply> Client::txn(const json& compare, const json& then, const json& otherwise) {
  SHOAL_TRY(const json reply, post("kv/txn", {{"compare", compare}, {"success", then}, {"failure", otherwise}}));
  TxnReply out;
  const auto succeeded = reply.find("succeeded");
  out.succeeded = succeeded != reply.end() && succeeded->is_boolean() && succeeded->get<bool>();
  if (const auto header = reply.find("header"); header != reply.end()) out.revision = number_in(*header, "revision");
  if (const auto responses = reply.find("responses"); responses != reply.end() && responses->is_array()) {
    for (const auto& r : *responses) {
      const auto at = r.is_object() ? r.find("response_range") : r.end();
      out.ranges.push_back(at == r.end() ? std::vector<KeyValue>() : pairs_in(*at));
    }
  }
  const std::size_t expected = out.succeeded ? then.size() : otherwise.size();
  if (out.ranges.size() != expected)
    return fail(
        internal("etcd answers a transaction of " + std::to_string(expected) + " operations with " + std::to_string(out.ranges.size())));
  return out;
}

Result<std::vector<KeyValue>> Client::range(const std::string& from, const std::string& end, std::int64_t limit) {
  SHOAL_TRY(const json reply,
            post("kv/range", {{"key", to_base64(from)}, {"range_end", to_base64(end)}, {"limit", std::to_string(limit)}}));
  return pairs_in(reply);
}

Result<std::int64_t> Client::grant(std::int64_t ttl_s) {
  SHOAL_TRY(const json reply, post("lease/grant", {{"TTL", std::to_string(ttl_s)}}));
  const auto lease = number_in(reply, "ID");
  if (lease == 0) return fail(internal("etcd granted no lease"));
  return lease;
}

Result<std::optional<std::int64_t>> Client::keep_alive(std::int64_t lease) {
  SHOAL_TRY(const json reply, post("lease/keepalive", {{"ID", std::to_string(lease)}}));
  const auto result = reply.find("result");
  const auto left = result == reply.end() ? 0 : number_in(*result, "TTL");
  return left > 0 ? std::optional(left) : std::nullopt;
}

Result<void> Client::revoke(std::int64_t lease) { return unless_gone(post("lease/revoke", {{"ID", std::to_string(lease)}})); }

Result<void> Client::compact(std::int64_t revision) { return unless_gone(post("kv/compaction", {{"revision", std::to_string(revision)}})); }

}  // namespace shoal::scheduler::etcd
