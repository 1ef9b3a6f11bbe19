// A client of etcd through its JSON gateway: transactions and leases, as far as heads need them.
//
// Blocks its caller. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/etcd/http_post.h"

namespace shoal::scheduler::etcd {

// etcds://HOST:PORT[,HOST:PORT]/NAME with TLS, or etcd://.. in clear text. NAME is the cluster, whose keys begin with shoal/NAME/.
struct Address {
  std::vector<std::string> servers;  // HOST:PORT
  std::string cluster;
  TlsFiles tls = {};  // for etcds://
  bool in_tls() const { return !tls.authority.empty(); }
  std::string text() const;
  std::string key(const std::string& rest) const { return "shoal/" + cluster + "/" + rest; }
  // A name has at most 100 letters, digits, '.', '_' and '-'. Returns an error with the reason TlsRequired for a server beyond loopback
  // without TLS.
  static Result<Address> parse(const std::string& text, const Access& access = {});
};

struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0, mod_revision = 0;
};

// Operations and conditions of transactions.
nlohmann::json put(const std::string& key, const std::string& value, std::int64_t lease = 0);
nlohmann::json erase(const std::string& key);
nlohmann::json erase_below(const std::string& prefix);
nlohmann::json range(const std::string& key);
nlohmann::json range_below(const std::string& prefix);
nlohmann::json if_created_at(const std::string& key, std::int64_t revision);  // 0: the key does not exist
nlohmann::json if_value(const std::string& key, const std::string& value);

// The first key after all keys with `prefix`.
std::string end_of(const std::string& prefix);

struct TxnReply {
  bool succeeded = false;
  std::int64_t revision = 0;                  // etcd's revision when it answered
  std::vector<std::vector<KeyValue>> ranges;  // one list per operation of the branch that was taken; empty unless the operation is a range
};

class Client {
 public:
  // `timeout`: for a request to one server.
  static Result<std::unique_ptr<Client>> open(const Address& address, runtime::Duration timeout);
  void set_timeout(runtime::Duration timeout) { timeout_ = timeout; }

  // Returns Unavailable if the transaction's outcome is unknown: etcd may have made it, or may still make it. Returns ResourceExhausted if
  // etcd has no space left.
  Result<TxnReply> txn(const nlohmann::json& compare, const nlohmann::json& then,
                       const nlohmann::json& otherwise = nlohmann::json::array());
  // Keys from `from` up to, but without, `end`; at most `limit`.
  Result<std::vector<KeyValue>> range(const std::string& from, const std::string& end, std::int64_t limit);
  Result<std::int64_t> grant(std::int64_t ttl_s);
  // Extends a lease, and returns its seconds left; nullopt if the lease is over.
  Result<std::optional<std::int64_t>> keep_alive(std::int64_t lease);
  Result<void> revoke(std::int64_t lease);
  // Discards values older than `revision`. Succeeds if that was done already.
  Result<void> compact(std::int64_t revision);

 private:
  Client(Address address, std::unique_ptr<HttpPost> http, runtime::Duration timeout)
      : address_(std::move(address)), http_(std::move(http)), timeout_(timeout) {}
  // Asks the servers in turn until one answers, beginning with the last that did.
  Result<nlohmann::json> post(const std::string& path, const nlohmann::json& body);

  const Address address_;
  const std::unique_ptr<HttpPost> http_;
  runtime::Duration timeout_;
  std::size_t at_ = 0;
};

}  // namespace shoal::scheduler::etcd
