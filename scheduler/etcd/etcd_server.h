// A real etcd for tests, on loopback, with a data folder that is removed with this object; and certificates made by openssl.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/process/process.h"
#include "scheduler/etcd/client.h"

namespace shoal::scheduler::etcd {

inline std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  SHOAL_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0,
              "no port");
  close(fd);
  return ntohs(at.sin_port);
}

// Certificates of two authorities: `ca` signed those of etcd and its client, `other` that of a stranger.
class Certificates {
 public:
  Certificates() {
    SHOAL_CHECK(mkdtemp(folder_.data()) != nullptr, "no folder");
    std::ofstream(folder_ + "/config") << "[req]\ndistinguished_name=name\n[name]\n";
    for (const std::string authority : {"ca", "other"}) {
      make(authority, {"-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"});
    }
    make("etcd", {"-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
                  "extendedKeyUsage=serverAuth,clientAuth"});  // etcd's gateway is a client of etcd
    make("client", {"-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-addext", "extendedKeyUsage=clientAuth"});
    make("stranger", {"-CA", path("other.pem"), "-CAkey", path("other.key"), "-addext", "extendedKeyUsage=clientAuth"});
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles files(const std::string& authority, const std::string& own) const {
    return {path(authority + ".pem"), path(own + ".pem"), path(own + ".key")};
  }

 private:
  void make(const std::string& name, const std::vector<std::string>& more) {
    runtime::SpawnSpec spec;
    spec.argv = {"openssl",
                 "req",
                 "-x509",
                 "-config",
                 path("config"),
                 "-newkey",
                 "ec",
                 "-pkeyopt",
                 "ec_paramgen_curve:P-256",
                 "-nodes",
                 "-days",
                 "2",
                 "-subj",
                 "/CN=" + name,
                 "-keyout",
                 path(name + ".key"),
                 "-out",
                 path(name + ".pem")};
    spec.argv.insert(spec.argv.end(), more.begin(), more.end());
    spec.env = {"PATH=/usr/bin:/usr/local/bin:/bin"};
    const auto pid = runtime::spawn(std::move(spec));
    const auto status = pid ? runtime::wait_exit(*pid, std::chrono::minutes(5)) : std::nullopt;
    SHOAL_CHECK(status && status->ok(), "openssl makes no certificates");
  }

  std::string folder_ = "/tmp/shoal-certificates.XXXXXX";
};

class EtcdServer {
 public:
  // With certificates: TLS, for clients with certificates of `ca`.
  explicit EtcdServer(const Certificates* certificates = nullptr) : certificates_(certificates) {
    if (certificates_ != nullptr) tls_ = certificates_->files("ca", "client");
    folder_ = "/tmp/shoal-etcd.XXXXXX";
    SHOAL_CHECK(mkdtemp(folder_.data()) != nullptr, "no folder");
    for (int i = 0; i < 5 && pid_ == 0; ++i) {  // another process may take a port meanwhile
      port_ = free_port();
      peer_port_ = free_port();
      start();
    }
    SHOAL_CHECK(pid_ != 0, "etcd does not start");
  }
  ~EtcdServer() {
    crash();
    std::filesystem::remove_all(folder_);
  }

  void start() {
    const std::string client = url(), peer = "http://127.0.0.1:" + std::to_string(peer_port_);
    runtime::SpawnSpec spec;
    spec.argv = {"etcd",
                 "--data-dir",
                 folder_ + "/data",
                 "--listen-client-urls",
                 client,
                 "--advertise-client-urls",
                 client,
                 "--listen-peer-urls",
                 peer,
                 "--initial-advertise-peer-urls",
                 peer,
                 "--initial-cluster",
                 "default=" + peer,
                 "--heartbeat-interval",
                 "20",
                 "--election-timeout",
                 "200",
                 "--logger",
                 "zap",
                 "--log-outputs",
                 folder_ + "/log"};
    if (certificates_ != nullptr) {
      const auto own = certificates_->files("ca", "etcd");
      spec.argv.insert(spec.argv.end(),
                       {"--client-cert-auth", "--trusted-ca-file", own.authority, "--cert-file", own.certificate, "--key-file", own.key});
    }
    spec.env = {"PATH=/usr/bin:/usr/local/bin:/bin"};
    const auto pid = runtime::spawn(std::move(spec));
    SHOAL_CHECK(pid.has_value(), "etcd cannot be run: apt-get install etcd-server");
    pid_ = *pid;
    auto http = HttpPost::make(tls_).value();
    for (;;) {
      const auto reply = http->post(client + "/v3/kv/range", R"({"key":"YQ=="})", std::chrono::seconds(5));
      if (reply && reply->status == 200) return;
      if (runtime::wait_exit(pid_, std::chrono::milliseconds(20))) break;
    }
    pid_ = 0;
  }
  void crash() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    (void)runtime::wait_exit(pid_, std::chrono::seconds(30));
    pid_ = 0;
  }
  void stop() { kill(pid_, SIGSTOP); }
  void go_on() { kill(pid_, SIGCONT); }

  std::uint16_t port() const { return port_; }
  std::string url() const { return (certificates_ ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port_); }
  Address address(const std::string& cluster) const { return {{"127.0.0.1:" + std::to_string(port_)}, cluster, tls_}; }

 private:
  const Certificates* const certificates_;
  TlsFiles tls_;
  std::string folder_;
  std::uint16_t port_ = 0, peer_port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace shoal::scheduler::etcd
