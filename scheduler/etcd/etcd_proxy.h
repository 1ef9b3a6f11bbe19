// A proxy before etcd that plays the network's faults in tests.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "scheduler/etcd/etcd_server.h"

namespace shoal::scheduler::etcd {

// Forwards connections. A request may lose its answer, be kept back and sent later, or be dropped.
class Proxy {
 public:
  enum Fault { kNone, kLoseAnswer, kKeepBack, kDrop };
  explicit Proxy(std::uint16_t to) : to_(to), port_(free_port()) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const auto at = loopback(port_);
    SHOAL_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && listen(listener_, 8) == 0, "no proxy");
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    over_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  // Applies `fault` to the next requests that write.
  void next(Fault fault, int count = 1, int after = 0) {
    left_ = count;
    pass_ = after;
    fault_ = fault;
  }
  int dropped_puts() const { return dropped_puts_; }
  // Drops everything after so many writes.
  void die_after(int writes) { next(kDrop, 1 << 30, writes); }
  // Sends what was kept back, and returns its answer.
  std::string release() {
    const int server = dial();
    send(server, kept_.data(), kept_.size(), MSG_NOSIGNAL);
    const std::string answer = read_message(server);
    close(server);
    return answer;
  }
  Address address(const std::string& cluster) const { return {{"127.0.0.1:" + std::to_string(port_)}, cluster}; }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
  }
  int dial() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto at = loopback(to_);
    SHOAL_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0, "the proxy finds no etcd");
    return fd;
  }
  // Reads headers and the body; "" at the end of the connection.
  static std::string read_message(int fd) {
    std::string out;
    char buffer[65536];
    for (;;) {
      const auto headers = out.find("\r\n\r\n");
      if (headers != std::string::npos) {
        const auto at = out.find("Content-Length: ");
        if (out.substr(0, headers).find("chunked") != std::string::npos) {
          if (out.ends_with("\r\n0\r\n\r\n")) return out;
          const auto n = recv(fd, buffer, sizeof buffer, 0);
          if (n <= 0) return "";
          out.append(buffer, static_cast<std::size_t>(n));
          continue;
        }
        const std::size_t body = at < headers ? std::strtoul(out.c_str() + at + 16, nullptr, 10) : 0;
        if (out.size() >= headers + 4 + body) return out;
      }
      const auto n = recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return "";
      out.append(buffer, static_cast<std::size_t>(n));
    }
  }
  void run() {
    while (!over_) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      serve(client);
      close(client);
    }
  }
  void serve(int client) {
    const int server = dial();
    for (;;) {
      pollfd ready{client, POLLIN, 0};
      while (!over_ && poll(&ready, 1, 20) == 0) {
      }
      if (over_) break;
      const std::string request = read_message(client);
      if (request.empty()) break;
      const bool writes = request.find("/v3/kv/txn") != std::string::npos;
      const bool passes = writes && pass_ > 0 && pass_-- > 0;
      const Fault fault = writes && !passes && left_ > 0 ? fault_.load() : kNone;
      if (fault != kNone) --left_;
      if (fault == kDrop) {
        if (request.find("request_put") != std::string::npos) ++dropped_puts_;
        break;
      }
      if (fault == kKeepBack) {
        kept_ = request;
        break;
      }
      send(server, request.data(), request.size(), MSG_NOSIGNAL);
      const std::string answer = read_message(server);
      if (fault == kLoseAnswer) break;
      send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
    close(server);
  }

  const std::uint16_t to_, port_;
  int listener_ = -1;
  std::atomic<bool> over_ = false;
  std::atomic<Fault> fault_ = kNone;
  std::atomic<int> left_ = 0, pass_ = 0, dropped_puts_ = 0;
  std::string kept_;  // accessed only while no request is under way
  std::thread thread_;
};

}  // namespace shoal::scheduler::etcd
