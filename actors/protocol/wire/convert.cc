#include "actors/protocol/wire/convert.h"

#include <algorithm>

#include "actors/protocol/cluster/row_bounds.h"

namespace shoal::actors {

using runtime::text;

void read_into(capnp::Text::Reader t, std::string& to, RowText how) {
  const char* const what = how.what;
  KJ_REQUIRE(t.size() <= RowBounds::kMaxText, "a text is too long", what, t.size());
  read_into(t, to);
}

void read_into(capnp::Text::Reader from, std::string& out, OfProcess) {
  read_into(from, out);
  // The kernel ends arguments, variables and paths at a zero byte.
  KJ_REQUIRE(out.find('\0') == std::string::npos, "a zero byte in an argument, variable or path of a process");
}

void read_into(capnp::Data::Reader from, std::string& to) { to.assign(reinterpret_cast<const char*>(from.begin()), from.size()); }

void read_into(capnp::Data::Reader data, std::string& to, ClientBytes) {
  KJ_REQUIRE(data.size() <= GangSpec::kMaxCreationSpec, "a client's own bytes are too many");
  read_into(data, to);
}

namespace {
void read_amounts(capnp::List<wire::Amount>::Reader list, Resources& to, std::int64_t most) {
  check_size(list, RowBounds::kMaxResources, "resources");
  for (const auto a : list) {
    KJ_REQUIRE(a.getUnits() >= 0 && a.getUnits() <= most, "an amount out of range");
    to.set_units(text(a.getName()), a.getUnits());
  }
}
}  // namespace

void read_into(capnp::List<wire::Amount>::Reader from, Resources& to) { read_amounts(from, to, RowBounds::kMaxUnits); }
void read_into(capnp::List<wire::Amount>::Reader from, Resources& to, Sums) { read_amounts(from, to, INT64_MAX); }

void read_into(capnp::List<wire::Bundle>::Reader from, Bundles& to, std::size_t limit, const char* what) {
  auto& [bundles, nodes] = to;
  read_into(from, bundles, limit, what);
  for (const auto bundle : from) nodes.push_back(NodeId{bundle.getNode()});
}

void read_into(wire::Pair::Reader from, Pair& to, OfProcess how) {
  read_into(from.getName(), to.first, how);
  read_into(from.getValue(), to.second, how);
}

void read_into(capnp::List<wire::Pair>::Reader from, Pairs& to) {
  check_size(from, RowBounds::kMaxPairs, "pairs");
  for (const auto pair : from) to[text(pair.getName())] = text(pair.getValue());
}

void fill(capnp::List<wire::Amount>::Builder to, const Resources& resources) {
  unsigned i = 0;
  for (const auto& [name, units] : resources.all()) {
    to[i].setName(name);
    // The amount is negative while a task takes back its lent CPUs.
    to[i++].setUnits(std::max<std::int64_t>(units, 0));
  }
}

void fill(capnp::List<wire::Bundle>::Builder to, const std::vector<Resources>& bundles) {
  for (unsigned i = 0; i < bundles.size(); ++i) fill(to[i].initResources(length(bundles[i])), bundles[i]);
}

void fill(capnp::List<wire::Bundle>::Builder to, const ConstBundles& given) {
  const auto& [bundles, nodes] = given;
  fill(to, bundles);
  for (unsigned i = 0; i < bundles.size(); ++i) to[i].setNode(nodes.at(i).value);
}

void fill(wire::Pair::Builder to, const Pair& pair) {
  to.setName(pair.first);
  to.setValue(pair.second);
}

void fill(capnp::List<wire::Pair>::Builder to, const Pairs& pairs) {
  unsigned i = 0;
  for (const auto& [name, value] : pairs) {
    to[i].setName(name);
    to[i++].setValue(value);
  }
}

}  // namespace shoal::actors
