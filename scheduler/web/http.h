// The subset of HTTP/1.1 that the head speaks: one request and one answer per connection. Pure: bytes in, a request or a refusal out.
// Ambiguous requests are refused.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::scheduler::web {

struct HttpRequest {
  std::string method;
  std::string path;                            // decoded, without the query
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool takes_chunks = true;  // false for a client of HTTP/1.0

  // The value of this header; "" if it is absent.
  const std::string& header(const std::string& name) const;
};

// Reason for not serving a request.
struct Refusal {
  int status = 400;
  std::string why;
};

class HttpParser {
 public:
  struct Limits {
    std::size_t head_bytes = 16 << 10;
    std::size_t num_headers = 64;
    std::size_t body_bytes = 1 << 20;
  };
  explicit HttpParser(Limits limits) : limits_(limits) {}

  // Parses the bytes that have arrived. A refusal is final. Bytes after a whole request are ignored: there is no pipelining.
  std::optional<Refusal> feed(std::string_view bytes);
  bool complete() const { return have_head_ && request_.body.size() == body_bytes_; }
  // True if the client waits for "100 Continue" before it sends its body.
  bool expects_continue() const { return have_head_ && !complete() && request_.header("expect") == "100-continue"; }
  const HttpRequest& request() const { return request_; }

 private:
  std::optional<Refusal> read_head(std::string_view head);
  std::optional<Refusal> read_first_line(std::string_view line);
  std::optional<Refusal> read_header(std::string_view line);
  std::optional<Refusal> judge_body();

  const Limits limits_;
  std::string head_;
  bool have_head_ = false;
  std::size_t body_bytes_ = 0;
  HttpRequest request_;
};

// Without a size, the body is sent in chunks, or ends with the connection if the client takes none.
// `policy`: the Content-Security-Policy of a page.
std::string response_head(int status, std::string_view content_type, std::optional<std::size_t> body_bytes, bool takes_chunks = true,
                          std::string_view policy = {});
std::string chunk(std::string_view bytes);  // an empty one ends the body

// Decodes %XX, and + as a space in queries. Returns nullopt if the text is malformed or contains a NUL.
std::optional<std::string> decode_percent(std::string_view text, bool plus_is_space);

}  // namespace shoal::scheduler::web
