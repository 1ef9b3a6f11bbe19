// Parts that several messages and the head's records have in common: rows, launches and resources, to Cap'n Proto and back.
//
// Used by code that defines messages (head_messages.cc, node_messages.cc, scheduler/state/tables/records.cc). The readers throw
// kj::Exception for hostile input, so they are called within runtime::read only.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/row_bounds.h"
#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/cluster/specs.h"
#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/method.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/error_message.h"

namespace shoal::actors {

inline constexpr std::size_t kMaxList = 1 << 20;

template <class List>
void check_size(const List& list, std::size_t limit, const char* what) {
  KJ_REQUIRE(list.size() <= limit, "a list is too long", what);
}

template <class Enum>
Enum checked(std::uint16_t raw, std::uint16_t count, const char* what) {
  KJ_REQUIRE(raw < count, "an unknown value of an enum", what);
  return static_cast<Enum>(raw);
}

template <class Builder>
void fill_resources(Builder builder, const Resources& resources) {
  unsigned i = 0;
  for (const auto& [name, units] : resources.all()) {
    builder[i].setName(name);
    // The amount is negative while a task takes back its lent CPUs.
    builder[i++].setUnits(std::max<std::int64_t>(units, 0));
  }
}

// A text that becomes part of a row, and therefore has at most RowBounds::kMaxText bytes. `what` names it in the error.
std::string row_text(capnp::Text::Reader text, const char* what);

Resources read_resources(capnp::List<wire::Amount>::Reader list);
Resources read_sums(capnp::List<wire::Amount>::Reader list);  // sums over nodes, which may exceed a node's bound
std::vector<std::string> read_texts(capnp::List<capnp::Text>::Reader list);
void fill_texts(capnp::List<capnp::Text>::Builder builder, const std::vector<std::string>& texts);
std::map<std::string, std::string> read_map(capnp::List<wire::Pair>::Reader list);

template <class Builder, class Pairs>
void fill_pairs(Builder builder, const Pairs& pairs) {
  unsigned i = 0;
  for (const auto& [name, value] : pairs) {
    builder[i].setName(name);
    builder[i++].setValue(value);
  }
}

inline capnp::Data::Reader data_of(const std::string& bytes) { return {reinterpret_cast<const capnp::byte*>(bytes.data()), bytes.size()}; }

std::string bytes_of(capnp::Data::Reader data);

inline unsigned count(const auto& container) { return static_cast<unsigned>(container.size()); }

// Reads the cause of an end from a message; nullopt if the field is absent.
template <class Reader>
std::optional<Error> read_cause(const Reader& m) {
  if (!m.hasCause()) return std::nullopt;
  return runtime::read_error(m.getCause());
}

template <class Builder>
void fill_cause(Builder m, const std::optional<Error>& cause) {
  if (cause) runtime::fill_error(m.initCause(), *cause);
}

void fill(wire::Launch::Builder m, const Launch& launch);
Launch read_launch(wire::Launch::Reader m);

template <class Builder>
void fill_labels(Builder builder, const std::vector<LabelMatch>& labels) {
  for (unsigned i = 0; i < labels.size(); ++i) {
    builder[i].setLabel(labels[i].label);
    fill_texts(builder[i].initValues(count(labels[i].values)), labels[i].values);
    builder[i].setNegated(labels[i].negated);
  }
}

template <class Builder>
void fill_labels(Builder builder, const std::vector<std::vector<LabelMatch>>& labels) {
  for (unsigned i = 0; i < labels.size(); ++i) fill_labels(builder.init(i, count(labels[i])), labels[i]);
}

std::vector<std::vector<LabelMatch>> read_labels(capnp::List<capnp::List<wire::LabelMatch>>::Reader list);
std::vector<LabelMatch> read_labels(capnp::List<wire::LabelMatch>::Reader list);
void fill(wire::Where::Builder m, const Where& where);
Where read_where(wire::Where::Reader m);

inline Strategy read_strategy(std::uint16_t raw) { return checked<Strategy>(raw, 4, "strategy"); }

void fill(wire::GroupRow::Builder m, const GroupRow& row);
GroupRow read_group(wire::GroupRow::Reader m);
void fill(wire::ActorRow::Builder m, const ActorRow& row);
ActorRow read_actor(wire::ActorRow::Reader m);
void fill(wire::NodeRow::Builder m, const NodeRow& row);
NodeRow read_node(wire::NodeRow::Reader m);
void fill(wire::WorkerRow::Builder m, const WorkerRow& row);
WorkerRow read_worker(wire::WorkerRow::Reader m);
void fill(wire::Submission::Builder m, const Submission& submission);
Submission read_submission(wire::Submission::Reader m);
void fill(wire::JobRow::Builder m, const JobRow& row);
JobRow read_job(wire::JobRow::Reader m);

template <class Row, class List, class ReadOne>
std::vector<Row> read_rows(List list, ReadOne read_one) {
  check_size(list, kMaxList, "rows");
  std::vector<Row> out;
  for (const auto m : list) out.push_back(read_one(m));
  return out;
}

template <class List, class Row>
void fill_rows(List list, const std::vector<Row>& rows) {
  for (unsigned i = 0; i < rows.size(); ++i) fill(list[i], rows[i]);
}

}  // namespace shoal::actors
