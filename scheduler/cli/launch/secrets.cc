#include "scheduler/cli/launch/secrets.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace shoal::scheduler::cli {

namespace {

constexpr std::array<std::string_view, 4> kPlaces = {"FILE", "PATH", "DIR", "SOCK"};  // the value says where a secret is
constexpr std::array<std::string_view, 13> kWords = {"TOKEN", "SECRET", "SECRETS",    "PASSWORD",    "PASSWD", "PASSPHRASE", "PASS",
                                                     "KEY",   "APIKEY", "CREDENTIAL", "CREDENTIALS", "PAT",    "AUTH"};
// Ends of words that name secrets, as in PGPASSWORD. KEY is not among them, since MONKEY names none.
constexpr std::array<std::string_view, 5> kEnds = {"TOKEN", "SECRET", "APIKEY", "PASSWORD", "CREDENTIALS"};
constexpr std::string_view kBehindAddress = " \t\n\"'`<>";
constexpr std::string_view kBehindValue = " \t\n\"'&;,";

bool is_of_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; }

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> out = {""};
  for (const char c : name) {
    if (c == '_' || c == '-' || c == '.') {
      out.emplace_back();
    } else {
      out.back() += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
  }
  return out;
}

bool is_port(std::string_view text) { return text.find_first_not_of("0123456789") == std::string_view::npos; }

// Begin and end of user and password, in an address whose host begins at `from`; both are the same if it has none.
std::pair<std::size_t, std::size_t> user_in(std::string_view text, std::size_t from) {
  const auto end = std::min(text.find_first_of(kBehindAddress, from), text.size());
  const auto authority = text.substr(from, std::min(text.find_first_of("/?#", from), end) - from);
  if (const auto at = authority.rfind('@'); at != std::string_view::npos) return {from, from + at};
  // There is no @ before the first /. A password may contain a / that should have been written as %2F: then the @ comes behind the /.
  const auto colon = authority.find(':');
  if (colon == std::string_view::npos || authority.front() == '[' || is_port(authority.substr(colon + 1))) return {from, from};
  const auto at = text.substr(from, end - from).find('@');
  return {from, at == std::string_view::npos ? from : from + at};
}

}  // namespace

bool names_secret(std::string_view name) {
  const auto words = words_of(name);
  if (words.size() > 1 && std::ranges::find(kPlaces, words.back()) != kPlaces.end()) return false;
  return std::ranges::any_of(words, [](const std::string& word) {
    return std::ranges::find(kWords, word) != kWords.end() || std::ranges::any_of(kEnds, [&](auto end) { return word.ends_with(end); });
  });
}

bool has_password(std::string_view text) {
  for (auto at = text.find("://"); at != std::string_view::npos; at = text.find("://", at + 3)) {
    const auto [from, end] = user_in(text, at + 3);
    if (text.substr(from, end - from).find(':') != std::string_view::npos) return true;
  }
  return false;
}

std::string without_secrets(std::string_view text) {
  const auto first = text.find('=');
  if (first != std::string_view::npos && std::ranges::all_of(text.substr(0, first), is_of_name) && names_secret(text.substr(0, first)))
    return std::string(text.substr(0, first + 1)) + "(secret)";
  std::string out;
  std::size_t name = 0;  // the begin of the name whose characters are read at present
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with("://")) {
      const auto [from, end] = user_in(text, i + 3);
      out += from == end ? "://" : "://***";
      i = name = end;
      continue;
    }
    const char c = text[i++];
    out += c;
    if (is_of_name(c)) continue;
    if (c == '=' && names_secret(text.substr(name, i - 1 - name)) && i < text.size()) {
      const bool quoted = text[i] == '"' || text[i] == '\'';
      const auto end = quoted ? text.find(text[i], i + 1) : text.find_first_of(kBehindValue, i);
      out += "(secret)";
      i = std::min(end, text.size());
      if (quoted && i < text.size()) ++i;
    }
    name = i;
  }
  return out;
}

}  // namespace shoal::scheduler::cli
