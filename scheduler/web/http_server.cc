#include "scheduler/web/http_server.h"

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <map>

#include <fmt/format.h>

#include "runtime/core/printable.h"

namespace shoal::scheduler::web {

using asio::ip::tcp;
using nlohmann::json;

int http_status(const Error& error) {
  switch (error.code()) {
    case Code::kNotFound:
      return 404;
    case Code::kInvalidArgument:
      return 400;
    case Code::kResourceExhausted:
      return error.reason() == "Infeasible" ? 400 : 503;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    case Code::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

json error_body(const Error& error) {
  return {{"code", code_name(error.code())}, {"reason", error.reason()}, {"message", error.message()}, {"hint", error.hint()}};
}

void HttpReply::fail(const Error& error) { send(http_status(error), error_body(error)); }

namespace {
class Connection;
std::string text_of(const json& body) { return printable_json(body.dump(-1, ' ', false, json::error_handler_t::replace)) + "\n"; }
}  // namespace

struct HttpServer::Impl {
  Impl(runtime::Loop& l, runtime::Clock& c, runtime::Log g, const Options& o, Handler h)
      : loop(l), clock(c), log(std::move(g)), options(o), handler(std::move(h)), acceptor(l.io()) {}

  Result<void> open(const runtime::Token& token);
  void accept(const std::shared_ptr<Impl>& self);
  void make_room();

  runtime::Loop& loop;
  runtime::Clock& clock;
  const runtime::Log log;
  const Options options;
  const Handler handler;
  tcp::acceptor acceptor;
  std::optional<Guard> guard;
  std::map<std::uint64_t, std::shared_ptr<Connection>> connections;
  std::uint64_t next_connection = 1;
  runtime::Timer again;
  bool closed = false;
};

namespace {

// One request and its answer. The server holds the connection while it is open; the reply may hold it longer.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, tcp::socket socket, std::uint64_t number)
      : server_(&server), socket_(std::move(socket)), number_(number), parser_(server.options.limits) {}

  void begin() {
    limit_ = server_->clock.after(server_->options.request_time, [self = shared_from_this()] {
      if (!self->received_) self->refuse({408, "the request did not arrive in time"});
    });
    read();
  }

  void send(int status, std::string_view content_type, const std::string& body, const std::string& policy = "") {
    if (!server_) return;
    unsent_ += response_head(status, content_type, body.size(), true, policy) + body;
    finish();
  }
  void begin_pieces(const std::string& content_type) {
    if (!server_) return;
    unsent_ += response_head(200, content_type, std::nullopt, takes_chunks());
    flush();
  }
  void piece(std::string_view bytes) {
    if (!server_ || bytes.empty()) return;
    takes_chunks() ? unsent_ += chunk(bytes) : unsent_ += bytes;
    if (unsent_.size() > server_->options.max_unsent_bytes) return close();
    flush();
  }
  void when_sent(std::function<void()> next) {
    if (!server_) return;
    if (!writing_) return next();  // nothing is being written, so nothing is unsent
    sent_ = std::move(next);
  }
  void end_pieces() {
    if (!server_) return;
    if (takes_chunks()) unsent_ += chunk("");
    finish();
  }
  bool gone() const { return server_ == nullptr; }
  // Returns true if no request has arrived, or the one that has is refused or answered.
  bool idle() const { return !received_ || refused_ || (last_ && !writing_); }

  void close() {
    if (!server_) return;
    HttpServer::Impl* const server = std::exchange(server_, nullptr);
    limit_ = {};
    std::error_code ignored;
    socket_.close(ignored);
    const auto dropped = std::exchange(sent_, {});  // destroyed last: it may hold the reply, which holds this connection
    server->connections.erase(number_);
  }

 private:
  class Reply;

  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](std::error_code error, std::size_t bytes) { self->arrived(error, bytes); });
  }

  void arrived(std::error_code error, std::size_t bytes) {
    if (!server_) return;
    if (error) return close();
    if (!received_) {
      if (const auto refusal = parser_.feed({buffer_.data(), bytes})) return refuse(*refusal);
      if (parser_.expects_continue() && !std::exchange(continue_sent_, true)) {
        unsent_ += "HTTP/1.1 100 Continue\r\n\r\n";
        flush();
      }
      if (parser_.complete()) handle_request();
    }
    if (server_) read();  // also detects that the client left
  }

  void handle_request();
  bool takes_chunks() const { return parser_.request().takes_chunks; }

  void refuse(const Refusal& refusal) {
    received_ = refused_ = true;
    send(refusal.status, "application/json", text_of({{"code", "Refused"}, {"reason", ""}, {"message", refusal.why}, {"hint", ""}}));
  }

  void finish() {
    last_ = true;
    flush();
  }

  void flush() {
    if (!server_ || writing_ || unsent_.empty()) return;
    writing_ = true;
    sending_ = std::exchange(unsent_, {});
    limit_ = server_->clock.after(server_->options.write_time, [self = shared_from_this()] { self->close(); });
    asio::async_write(socket_, asio::buffer(sending_), [self = shared_from_this()](std::error_code error, std::size_t) {
      self->writing_ = false;
      self->limit_ = {};
      if (!self->server_) return;
      if (error) return self->close();
      if (!self->unsent_.empty()) return self->flush();
      if (const auto next = std::exchange(self->sent_, {})) next();
      if (!self->server_ || self->writing_ || !self->last_) return;
      // Closing with unread bytes would discard the answer: let the client close first, for up to two seconds.
      std::error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
      self->limit_ = self->server_->clock.after(std::chrono::seconds(2), [self] { self->close(); });
    });
  }

  HttpServer::Impl* server_;  // null once closed
  tcp::socket socket_;
  const std::uint64_t number_;
  HttpParser parser_;
  std::array<char, 16 << 10> buffer_;
  std::string unsent_, sending_;
  std::function<void()> sent_;  // called once unsent_ and sending_ are both empty
  runtime::Timer limit_;
  bool received_ = false, refused_ = false, continue_sent_ = false, writing_ = false, last_ = false;
};

class Connection::Reply final : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Reply() override {
    if (!answered_) send(500, error_body(internal("no handler answered this request")));
    if (begun_ && !ended_) connection_->close();  // without the last chunk, clients see the answer as cut off
  }

  void send(int status, const json& body) override {
    if (std::exchange(answered_, true)) return;
    connection_->send(status, "application/json", text_of(body));
  }
  void send_text(const std::string& content_type, const std::string& text, const std::string& policy) override {
    if (std::exchange(answered_, true)) return;
    connection_->send(200, content_type, text, policy);
  }
  void begin(const std::string& content_type) override {
    if (std::exchange(answered_, true)) return;
    begun_ = true;
    connection_->begin_pieces(content_type);
  }
  void write(std::string_view piece) override {
    if (begun_ && !ended_) connection_->piece(piece);
  }
  void when_sent(std::function<void()> next) override {
    if (begun_ && !ended_) connection_->when_sent(std::move(next));
  }
  void end() override {
    if (begun_ && !std::exchange(ended_, true)) connection_->end_pieces();
  }
  bool gone() const override { return connection_->gone(); }

 private:
  const std::shared_ptr<Connection> connection_;
  bool answered_ = false, begun_ = false, ended_ = false;
};

void Connection::handle_request() {
  received_ = true;
  limit_ = {};
  const bool open = parser_.request().method == "GET" && server_->options.open_paths.contains(parser_.request().path);
  if (const auto refusal = server_->guard->check(parser_.request(), !open)) {
    server_->log->warn("http refused status={} why='{}'", refusal->status, refusal->why);
    return refuse(*refusal);
  }
  server_->handler(parser_.request(), std::make_shared<Reply>(shared_from_this()));
}

}  // namespace

Result<void> HttpServer::Impl::open(const runtime::Token& token) {
  std::error_code error;
  const auto address = asio::ip::make_address(options.host, error);
  if (error) return fail(invalid_argument("'" + options.host + "' is not an address"));
  const tcp::endpoint at(address, options.port);
  acceptor.open(at.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return fail(from_errno(error.value(), fmt::format("{}:{}", options.host, options.port)).with_reason("AddressInUse"));
  guard.emplace(token, options.host, acceptor.local_endpoint(error).port(), options.page_token);
  return {};
}

// Closes the oldest idle connection: silent clients, or refused ones that stay, cannot keep others out.
void HttpServer::Impl::make_room() {
  if (connections.size() < options.max_connections) return;
  const auto idle = std::find_if(connections.begin(), connections.end(), [](const auto& c) { return c.second->idle(); });
  if (idle != connections.end()) std::shared_ptr(idle->second)->close();
}

void HttpServer::Impl::accept(const std::shared_ptr<Impl>& self) {
  acceptor.async_accept([self](std::error_code error, tcp::socket socket) {
    if (self->closed) return;
    if (error) {  // retries later, for example when descriptors ran out
      self->again = self->clock.after(std::chrono::milliseconds(100), [self] { self->accept(self); });
      return;
    }
    self->make_room();
    if (self->connections.size() < self->options.max_connections) {
      const std::uint64_t number = self->next_connection++;
      const auto connection = std::make_shared<Connection>(*self, std::move(socket), number);
      self->connections[number] = connection;
      connection->begin();
    }
    self->accept(self);
  });
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                       const runtime::Token& token, const Options& options, Handler handler) {
  auto impl = std::make_shared<Impl>(loop, clock, std::move(log), options, std::move(handler));
  SHOAL_OK(impl->open(token));
  impl->accept(impl);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  impl_->closed = true;
  impl_->again = {};
  std::error_code ignored;
  impl_->acceptor.close(ignored);
  while (!impl_->connections.empty()) impl_->connections.begin()->second->close();
}

std::uint16_t HttpServer::port() const {
  std::error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

}  // namespace shoal::scheduler::web
