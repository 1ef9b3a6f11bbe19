#include "scheduler/cli/inspection/filter.h"

#include <strings.h>

#include <algorithm>
#include <map>

#include "runtime/core/printable.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

Result<Filter> parse_filter(const std::string& text) {
  const auto equals = text.find('=');
  const bool negated = equals != std::string::npos && equals > 0 && text[equals - 1] == '!';
  const auto key = text.substr(0, equals - negated);
  if (equals == std::string::npos || key.empty()) {
    return fail(invalid_argument("'" + text + "' is neither KEY=VALUE nor KEY!=VALUE").with_reason("Usage"));
  }
  return Filter{key, text.substr(equals + 1), negated};
}

bool matches(const json& row, const Filter& filter) {
  const json* at = &row;
  std::string_view key = filter.key;
  while (at != nullptr && !key.empty()) {
    // A field's name may contain dots: take the longest prefix that exists.
    auto end = key.size();
    while (end != std::string_view::npos && !(at->is_object() && at->contains(std::string(key.substr(0, end))))) {
      end = end == 0 ? std::string_view::npos : key.rfind('.', end - 1);
    }
    if (end == std::string_view::npos) {
      at = nullptr;
    } else {
      at = &(*at)[std::string(key.substr(0, end))];
      key.remove_prefix(std::min(end + 1, key.size()));
    }
  }
  const std::string text = at == nullptr || at->is_null() ? "" : at->is_string() ? at->get<std::string>() : at->dump();
  return (strcasecmp(text.c_str(), filter.value.c_str()) == 0) != filter.negated;
}

Result<void> resolve(const json& rows, const std::string& what, std::vector<Filter>& filters) {
  if (rows.empty()) return {};
  const auto known = [&](const std::string& field) {
    return std::any_of(rows.begin(), rows.end(), [&](const json& row) { return row.contains(field); });
  };
  const auto leads_somewhere = [&](const std::string& key) { return known(key) || known(key.substr(0, key.find('.'))); };
  const auto ours = [&](const std::string& key) -> std::string {
    static const std::map<std::string, std::string> kNames = {{"class_name", "class"},      {"func_or_class_name", "name"},
                                                              {"node_ip", "host"},          {"ray_namespace", "namespace"},
                                                              {"resources_total", "total"}, {"status", "state"}};
    const auto dot = std::min(key.find('.'), key.size());
    if (const auto it = kNames.find(key.substr(0, dot)); it != kNames.end()) return it->second + key.substr(dot);
    if (!key.ends_with("_id")) return key;
    const std::string whose = key.substr(0, key.size() - 3);
    return whose + "s" == what || "placement_" + what == whose + "s" ? "id" : whose;
  };
  for (Filter& f : filters) {
    if (leads_somewhere(f.key)) continue;
    if (auto name = ours(f.key); leads_somewhere(name)) {
      f.key = std::move(name);
      continue;
    }
    std::string fields;
    for (const auto& [name, value] : rows.front().items()) fields += (fields.empty() ? "" : ", ") + name;
    return fail(invalid_argument(what + " have no '" + f.key + "' to filter by").with_reason("Usage").with_hint("they have " + fields));
  }
  return {};
}

namespace {

std::string scalar(const json& value) {
  if (!value.is_string()) return value.dump();
  const std::string text = value;
  constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no", "on", "off", "~"};
  const bool plain =
      !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) && text.back() != ' ' &&
      std::all_of(text.begin(), text.end(),
                  [](unsigned char c) {
                    return std::isalnum(c) || std::string_view("_-./@ ").find(static_cast<char>(c)) != std::string_view::npos;
                  }) &&
      std::none_of(std::begin(kWords), std::end(kWords), [&](auto w) { return strcasecmp(text.c_str(), std::string(w).c_str()) == 0; });
  return plain ? text : printable_json(value.dump(-1, ' ', false, json::error_handler_t::replace));  // a JSON string is valid YAML
}

void write(const json& value, std::size_t indent, std::string& out) {
  const std::string space(indent, ' ');
  const auto child = [&](const json& v) {
    if ((v.is_object() || v.is_array()) && !v.empty()) {
      out += "\n";
      write(v, indent + 2, out);
    } else {
      out += " " + scalar(v) + "\n";
    }
  };
  if (value.is_object()) {
    for (const auto& [key, v] : value.items()) {
      out += space + scalar(key) + ":";
      child(v);
    }
  } else {
    for (const auto& v : value) {
      if (v.is_object() && !v.empty()) {  // the item's first line begins with "- "
        std::string item;
        write(v, indent + 2, item);
        item[indent] = '-';
        out += item;
      } else {
        out += space + "-";
        child(v);
      }
    }
  }
}

}  // namespace

std::string to_yaml(const json& value) {
  if (!(value.is_object() || value.is_array()) || value.empty()) return scalar(value) + "\n";
  std::string out;
  write(value, 0, out);
  return out;
}

}  // namespace shoal::scheduler::cli
