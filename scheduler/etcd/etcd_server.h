// A real etcd for tests: on loopback, with a data folder of its own, gone with this object.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

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

class EtcdServer {
 public:
  EtcdServer() {
    folder_ = "/tmp/shoal-etcd.XXXXXX";
    SHOAL_CHECK(mkdtemp(folder_.data()) != nullptr, "no folder");
    for (int i = 0; i < 5 && pid_ == 0; ++i) {  // somebody may take a port in between
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
    const std::string client = "http://127.0.0.1:" + std::to_string(port_), peer = "http://127.0.0.1:" + std::to_string(peer_port_);
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
    spec.env = {"PATH=/usr/bin:/usr/local/bin:/bin"};
    const auto pid = runtime::spawn(std::move(spec));
    SHOAL_CHECK(pid.has_value(), "etcd cannot be run: apt-get install etcd-server");
    pid_ = *pid;
    auto http = HttpPost::make().value();
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
  Address address(const std::string& cluster) const { return {{"127.0.0.1:" + std::to_string(port_)}, cluster}; }

 private:
  std::string folder_;
  std::uint16_t port_ = 0, peer_port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace shoal::scheduler::etcd
