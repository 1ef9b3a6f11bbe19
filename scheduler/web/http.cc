#include "scheduler/web/http.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace shoal::scheduler::web {

namespace {

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

bool is_token(std::string_view text) {
  constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kSigns.find(c) != std::string_view::npos;
  });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\t' || static_cast<unsigned char>(c) >= 0x20; });
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

const std::string& HttpRequest::header(const std::string& name) const {
  static const std::string none;
  const auto it = headers.find(name);
  return it == headers.end() ? none : it->second;
}

std::optional<std::string> decode_percent(std::string_view text, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = digit(text[i + 1]), low = digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (c == 0) return std::nullopt;
    out += c;
  }
  return out;
}

std::optional<Refusal> HttpParser::feed(std::string_view bytes) {
  if (!have_head_) {
    const std::size_t before = head_.size();
    head_.append(bytes.substr(0, limits_.head_bytes + 1 - std::min(limits_.head_bytes, before)));
    const auto end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
    if (end == std::string::npos) {
      if (head_.size() > limits_.head_bytes) return Refusal{431, "the head of the request is too long"};
      return std::nullopt;
    }
    const std::string head = head_.substr(0, end + 2);
    bytes.remove_prefix(end + 4 - before);
    head_.clear();
    if (auto refusal = read_head(head)) return refusal;
    have_head_ = true;
  }
  request_.body.append(bytes.substr(0, body_bytes_ - request_.body.size()));
  return std::nullopt;
}

std::optional<Refusal> HttpParser::read_head(std::string_view head) {
  bool first = true;
  while (!head.empty()) {
    const auto end = head.find("\r\n");
    const auto line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (!printable(line)) return Refusal{400, "a control character in the head of the request"};
    if (auto refusal = first ? read_first_line(line) : read_header(line)) return refusal;
    first = false;
  }
  return judge_body();
}

std::optional<Refusal> HttpParser::read_first_line(std::string_view line) {
  const Refusal malformed{400, "the first line of the request is malformed"};
  const auto one = line.find(' '), two = line.rfind(' ');
  if (one == std::string_view::npos || one == two || !is_token(line.substr(0, one))) return malformed;
  const auto version = line.substr(two + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return Refusal{505, "HTTP/1.1 is spoken here"};
  request_.takes_chunks = version == "HTTP/1.1";
  auto target = line.substr(one + 1, two - one - 1);
  if (target.empty() || target[0] != '/' || target.find(' ') != std::string_view::npos) return malformed;
  const auto question = target.find('?');
  const auto path = decode_percent(target.substr(0, question), false);
  if (!path) return malformed;
  request_.method = line.substr(0, one);
  request_.path = *path;
  auto rest = question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
  while (!rest.empty()) {
    const auto end = std::min(rest.find('&'), rest.size());
    const auto part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto equals = std::min(part.find('='), part.size());
    const auto name = decode_percent(part.substr(0, equals), true);
    const auto value = decode_percent(part.substr(std::min(equals + 1, part.size())), true);
    if (!name || !value) return malformed;
    request_.query[*name] = *value;
  }
  return std::nullopt;
}

std::optional<Refusal> HttpParser::read_header(std::string_view line) {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return Refusal{400, "a malformed header"};
  if (request_.headers.size() == limits_.num_headers) return Refusal{431, "too many headers"};
  if (!request_.headers.emplace(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1))).second) {
    return Refusal{400, "a header that is there twice"};
  }
  return std::nullopt;
}

std::optional<Refusal> HttpParser::judge_body() {
  if (request_.headers.contains("transfer-encoding")) return Refusal{501, "a body needs a Content-Length"};
  const auto it = request_.headers.find("content-length");
  if (it == request_.headers.end()) return std::nullopt;
  const std::string& text = it->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), body_bytes_);
  const bool digits = !text.empty() && text[0] >= '0' && text[0] <= '9' && end == text.data() + text.size();
  if (!digits || error == std::errc::invalid_argument) return Refusal{400, "a Content-Length that is no number"};
  if (error != std::errc() || body_bytes_ > limits_.body_bytes) {
    return Refusal{413, fmt::format("a body has {} bytes at most", limits_.body_bytes)};
  }
  return std::nullopt;
}

std::string response_head(int status, std::string_view content_type, std::optional<std::size_t> body_bytes, bool takes_chunks,
                          std::string_view policy) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status, reason_phrase(status), content_type);
  out += body_bytes ? fmt::format("Content-Length: {}\r\n", *body_bytes) : takes_chunks ? "Transfer-Encoding: chunked\r\n" : "";
  if (status == 401) out += "WWW-Authenticate: Bearer\r\n";
  if (!policy.empty())
    out += fmt::format("Content-Security-Policy: {}\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n", policy);
  out += "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n";
  return out;
}

std::string chunk(std::string_view bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }

}  // namespace shoal::scheduler::web
