// Answers HTTP requests on a given loop, without threads or blocking. The Guard checks each request before the handler gets it.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/web/guard.h"
#include "scheduler/web/http.h"

namespace shoal::scheduler::web {

// The answer to one request. Handlers keep it as long as they need; a reply that is destroyed unanswered sends status 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, const nlohmann::json& body) = 0;
  void fail(const Error& error);
  // `policy`: the Content-Security-Policy of a page.
  virtual void send_text(const std::string& content_type, const std::string& text, const std::string& policy = "") = 0;

  // Begins an answer in pieces.
  virtual void begin(const std::string& content_type) = 0;
  virtual void write(std::string_view piece) = 0;
  // Calls `next` once the kernel has all pieces so far, possibly before this returns; drops it if the client leaves. So a long answer waits
  // for a slow client, instead of filling memory. One call at a time.
  virtual void when_sent(std::function<void()> next) = 0;
  virtual void end() = 0;
  // Returns true if the client has left or reads too slowly, so that further output is useless.
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
    std::size_t max_connections = 64;                           // further ones replace the oldest idle one, or are closed
    std::size_t max_unsent_bytes = 8u << 20;                    // for answers in pieces; beyond it the connection is closed
    runtime::Duration request_time = std::chrono::seconds(10);  // for the whole request to arrive
    runtime::Duration write_time = std::chrono::seconds(30);    // for the client to read the pending output
    std::set<std::string> open_paths = {};                      // paths that need no token, since they contain no data
    std::string page_token = {};                                // a second token, which grants GET alone; "" for none
  };
  using Handler = std::function<void(const HttpRequest&, std::shared_ptr<HttpReply>)>;

  // Returns ResourceExhausted/AddressInUse if another process listens on the port. Loop, clock and handler outlive the server.
  static Result<std::unique_ptr<HttpServer>> listen(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                    const runtime::Token& token, const Options& options, Handler handler);
  ~HttpServer();  // closes all connections; pending replies send nothing

  std::uint16_t port() const;

  struct Impl;  // defined in the .cc

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::scheduler::web
