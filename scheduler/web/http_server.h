// Answers HTTP requests on the loop it is given: no thread, and nothing that waits. Who may ask is the Guard's to say, before a request
// reaches anybody.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/web/guard.h"
#include "scheduler/web/http.h"

namespace shoal::scheduler::web {

// The answer to one request; to be kept for as long as it takes. Destroyed unanswered, it says 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, const nlohmann::json& body) = 0;
  void fail(const Error& error);
  virtual void send_text(const std::string& content_type, const std::string& text) = 0;

  // Or piece by piece.
  virtual void begin(const std::string& content_type) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  // The other side left, or does not read what it asked for: nothing more is of use.
  virtual bool gone() const = 0;
};

int http_status(const Error& error);
nlohmann::json error_body(const Error& error);

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    std::uint16_t port = 0;
    HttpParser::Limits limits;
    std::size_t max_connections = 64;                           // the next one ends the oldest that is silent or answered, or is closed
    std::size_t max_unsent_bytes = 8u << 20;                    // of a reply that comes in pieces; then it is given up
    runtime::Duration request_time = std::chrono::seconds(10);  // for a whole request to arrive
    runtime::Duration write_time = std::chrono::seconds(30);    // for the other side to take something
  };
  using Handler = std::function<void(const HttpRequest&, std::shared_ptr<HttpReply>)>;

  // ResourceExhausted/AddressInUse. Loop, clock and handler outlive the server.
  static Result<std::unique_ptr<HttpServer>> listen(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                    const runtime::Token& token, const Options& options, Handler handler);
  ~HttpServer();  // connections end; replies that are still out say nothing any more

  std::uint16_t port() const;

  struct Impl;  // of the .cc

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::scheduler::web
