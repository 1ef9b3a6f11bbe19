#include "scheduler/cli/explain/explanation.h"

#include <algorithm>
#include <cctype>

#include "scheduler/cli/suggestion/suggestion.h"

namespace shoal::scheduler::cli {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool same(std::string_view a, std::string_view b) { return lower(a) == lower(b); }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '_'; }

// The first word of `text`, which may stand in a message's `error[WORD]: ..`.
std::string_view word_in(std::string_view text) {
  if (const auto open = text.find('['); open != std::string_view::npos) text.remove_prefix(open + 1);
  while (!text.empty() && !is_word(text.front())) text.remove_prefix(1);
  return text.substr(0, static_cast<std::size_t>(std::ranges::find_if_not(text, is_word) - text.begin()));
}

}  // namespace

bool has_code(const Explanation& reason, std::string_view code) {
  for (std::string_view rest = reason.codes; !rest.empty();) {
    const auto comma = std::min(rest.find(", "), rest.size());
    if (same(rest.substr(0, comma), code)) return true;
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return false;
}

std::string title_of(const Explanation& entry) {
  if (entry.kind == Explanation::Kind::kExit) return "exit code " + std::string(entry.name);
  if (entry.kind == Explanation::Kind::kVerdict) return "verdict " + std::string(entry.name);
  if (entry.kind == Explanation::Kind::kCode) return std::string(entry.name);
  std::string out(entry.codes);
  const std::string after = "/" + std::string(entry.name);
  for (std::size_t at = 0; (at = out.find(", ", at)) != std::string::npos; at += after.size() + 2) out.insert(at, after);
  return out + after;
}

std::vector<Explanation> explain(std::string_view text) {
  const std::string_view word = word_in(text);
  const auto slash = word.find('/');
  const std::string_view code = slash == std::string_view::npos ? "" : word.substr(0, slash);
  const std::string_view name = slash == std::string_view::npos ? word : word.substr(slash + 1);
  std::vector<Explanation> out;
  for (const auto& entry : all_explanations()) {
    if (same(entry.name, name) && (code.empty() || has_code(entry, code))) out.push_back(entry);
  }
  if (out.empty() || out.front().kind != Explanation::Kind::kCode) return out;
  for (const auto& entry : all_explanations()) {
    if (entry.kind == Explanation::Kind::kReason && has_code(entry, name)) out.push_back(entry);
  }
  return out;
}

std::string nearest_explained(std::string_view text) {
  const std::string_view word = word_in(text);
  const auto slash = word.find('/');
  const std::string typed = lower(slash == std::string_view::npos ? word : word.substr(slash + 1));
  std::vector<std::string> names;
  for (const auto& entry : all_explanations()) {
    if (entry.kind != Explanation::Kind::kExit) names.push_back(lower(entry.name));
  }
  const std::string meant = nearest(typed, names);
  for (const auto& entry : all_explanations()) {
    if (!meant.empty() && lower(entry.name) == meant) return std::string(entry.name);
  }
  return {};
}

}  // namespace shoal::scheduler::cli
