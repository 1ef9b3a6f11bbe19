// The format of every control message, whether each field of the schema is listed, and the texts with which malformed ones are refused.
//
// The messages are those of the headers' SHOAL_MESSAGE lines, so a new one needs no change here.
#include <capnp/any.h>
#include <capnp/dynamic.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/inspection.capnp.h"
#include "actors/protocol/wire/methods.h"
#include "runtime/core/golden.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {
namespace {

std::string hex_of(const Bytes& bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(bytes.data()[i]));
    out += digits;
  }
  return out;
}

// Fills a message. Each member gets a number by its place among the members of its struct, whatever the list of fields says, and a value
// made from this number. So the bytes change if the list connects a member with the wrong field.
class Filler {
 public:
  // With a `bit`, only bools whose numbers have it are set. So any two bools of a struct differ with one of the bits.
  explicit Filler(unsigned bit) : bit_(bit) {}

  template <class Reader, class T>
  void fill(Reader from, T& to, unsigned number) {
    std::set<const void*> members;
    T::fields(to, Fields<Reader>{from, this, &members, 0});
    T::fields(to, Fields<Reader>{from, this, &members, 8 * number + 1});
  }

 private:
  // The argument `io` of a list of fields (convert.h). It notes the members or, if they have numbers from `first` on, sets them.
  template <class Reader>
  struct Fields {
    static constexpr bool kReads = true;
    Reader m;
    Filler* filler;
    std::set<const void*>* members;
    unsigned first;
    static bool present(bool, const auto&) { return true; }
    static void check(const auto&) {}
    template <class From, class T>
    void read(From from, T& to, auto... how) const {
      const auto at = members->insert(&to).first;
      if (first > 0) filler->set(from, to, first + static_cast<unsigned>(std::distance(members->begin(), at)), how...);
    }
    void read(auto from, const std::tuple<std::vector<Resources>&, std::vector<NodeId>&>& to, auto...) const {
      read(from, std::get<0>(to));
      read(from, std::get<1>(to));
    }
    template <class Labels>
    void read(auto from, const LabelTexts<Labels>& to) const {
      read(from, to.labels);
    }
  };

  template <class From, class T>
  void set(From from, T& to, unsigned number, auto... how) {
    const std::string text = "t" + std::to_string(number);
    if constexpr (std::is_same_v<T, bool>) {
      to = bit_ == 0 || (number & bit_) != 0;
    } else if constexpr (std::is_enum_v<T>) {
      to = static_cast<T>(1 + number % (std::get<0>(std::tuple(how...)) - 1));
    } else if constexpr (std::is_arithmetic_v<T>) {
      to = static_cast<T>(number);
      if constexpr (std::is_signed_v<T> && sizeof(T) == 8) to = -to;
    } else if constexpr (kIsId<T>) {
      to.value = number;
    } else if constexpr (std::is_same_v<T, std::string>) {
      to = std::is_same_v<From, capnp::Data::Reader> ? text + std::string("\0d", 2) : text;
    } else if constexpr (std::is_same_v<T, Error> || std::is_same_v<T, std::optional<Error>>) {
      to = unavailable("was killed: ").because(not_found("no file").with_reason("Gone")).with_reason("Died").with_hint("h").in("a").in("b");
    } else if constexpr (std::is_same_v<T, Resources>) {
      to.set_units("CPU", number);
      to.set_units("GPU", 1);
    } else if constexpr (std::is_same_v<T, std::pair<std::string, std::string>>) {
      to = {text, ""};
    } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
      to = {{text, "a"}, {"b", text}};
    } else if constexpr (ListsFields<T>) {
      fill(from, to, number);
    } else {
      to.resize(2);
      const std::remove_cvref_t<decltype(from[0])> element{};
      for (auto& one : to) set(element, one, std::exchange(number, number + 100));
    }
  }

  unsigned bit_;
};

template <class T, class Schema>
T sample(unsigned bit = 0) {
  T out;
  Filler(bit).fill(typename Schema::Reader(), out, 0);
  if constexpr (std::is_same_v<T, GangSpec>) out.actors.resize(1);  // since it has a name
  return out;
}

Bytes from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return Bytes::copy_of(out);
}

// True if two messages have the same contents. One may lack fields that were added to the schema later.
bool same(const Bytes& a, const Bytes& b) {
  using Any = capnp::AnyPointer;
  return runtime::read<Any>(a, [&](Any::Reader x) { return runtime::read<Any>(b, [&](Any::Reader y) { return x == y; }); }).value_or(false);
}

// Sets every field of a message by its schema. Errors stay empty, since their texts depend on each other.
capnp::DynamicValue::Reader some(capnp::Type type, kj::StringPtr name) {
  if (type.isText()) return "a";
  if (type.isData()) return capnp::Data::Reader(reinterpret_cast<const capnp::byte*>("a"), 1);
  if (type.isBool()) return true;
  return name == "worldSize" ? 2 : 1;  // more than the rank
}
void set_all(capnp::DynamicStruct::Builder m);
void set_all(capnp::DynamicList::Builder list) {
  const auto type = list.getSchema().getElementType();
  for (unsigned i = 0; i < list.size(); ++i) {
    if (type.isStruct()) {
      set_all(list[i].as<capnp::DynamicStruct>());
    } else if (type.isList()) {
      set_all(list.init(i, 1).as<capnp::DynamicList>());
    } else {
      list.set(i, some(type, ""));
    }
  }
}
void set_all(capnp::DynamicStruct::Builder m) {
  if (m.getSchema() == capnp::Schema::from<runtime::wire::ErrorMessage>()) return;
  for (const auto field : m.getSchema().getFields()) {
    const auto type = field.getType();
    if (type.isStruct()) {
      set_all(m.init(field).as<capnp::DynamicStruct>());
    } else if (type.isList()) {
      set_all(m.init(field, type.asList().getElementType().isText() ? 2 : 1).as<capnp::DynamicList>());  // labels are pairs
    } else {
      m.set(field, some(type, field.getProto().getName()));
    }
  }
}
void expect_all(capnp::DynamicStruct::Reader m, const std::string& name) {
  if (m.getSchema() == capnp::Schema::from<runtime::wire::ErrorMessage>()) return;
  for (const auto field : m.getSchema().getFields()) {
    const std::string here = name + "." + field.getProto().getName().cStr();
    if (here == "CreateGroup.bundles.node") continue;  // only bundles of a row have nodes
    EXPECT_TRUE(m.has(field, capnp::HasMode::NON_DEFAULT)) << here << " is not in the struct's list of fields";
    if (field.getType().isStruct()) expect_all(m.get(field).as<capnp::DynamicStruct>(), here);
    if (!field.getType().isList()) continue;
    for (const auto one : m.get(field).as<capnp::DynamicList>()) {
      if (one.getType() == capnp::DynamicValue::STRUCT) expect_all(one.as<capnp::DynamicStruct>(), here);
    }
  }
}

// A message that a header declares by SHOAL_MESSAGE.
struct AnyMessage {
  std::string name;
  Bytes (*sample)(unsigned bit);
  Bytes empty;                            // with the values of a new struct
  Bytes all;                              // every field of the schema is set
  Result<Bytes> (*repeat)(const Bytes&);  // reads a message, and writes what it has read
  Result<void> (*expect)(const Bytes& all);
};
template <class T, class Schema>
AnyMessage any_message(const char* name) {
  return {name,
          [](unsigned bit) { return to_bytes(sample<T, Schema>(bit)); },
          to_bytes(T()),
          runtime::write<Schema>([](typename Schema::Builder m) { set_all(m); }),
          [](const Bytes& bytes) -> Result<Bytes> {
            SHOAL_TRY(const T back, from_bytes<T>(bytes));
            return to_bytes(back);
          },
          [](const Bytes& all) {
            return runtime::read<Schema>(
                all, [](typename Schema::Reader m) { expect_all(m, capnp::Schema::from<Schema>().getShortDisplayName().cStr()); });
          }};
}
std::vector<AnyMessage> all_messages() {
  std::vector<AnyMessage> out;
#define SHOAL_CONVERSION(T, Schema) out.push_back(any_message<T, wire::Schema>(#T))
#include "actors/protocol/wire/inspection.inc"
#include "actors/protocol/wire/messages.inc"
#undef SHOAL_CONVERSION
  return out;
}
// The bytes of a message once it is read and written again; no bytes, and a failure, if it is refused.
Bytes repeated(const AnyMessage& message, const Bytes& bytes) {
  auto back = message.repeat(bytes);
  EXPECT_TRUE(back) << message.name << ": " << back.error().to_string();
  return back ? *std::move(back) : Bytes();
}

TEST(WireFormat, EveryMessageHasItsBytes) {
  std::set<std::string> lines;  // in the order of names, whichever header has a message
  for (const auto& message : all_messages()) {
    EXPECT_EQ(hex_of(repeated(message, message.empty)), hex_of(message.empty)) << message.name;
    std::set<std::string> known;
    for (const unsigned bit : {0, 1, 2, 4, 8, 16}) {
      const Bytes bytes = message.sample(bit);
      EXPECT_EQ(hex_of(repeated(message, bytes)), hex_of(bytes)) << message.name;
      if (known.insert(hex_of(bytes)).second) lines.insert(message.name + "." + std::to_string(bit) + " " + hex_of(bytes) + "\n");
    }
  }
  expect_golden(std::accumulate(lines.begin(), lines.end(), std::string()), "actors/protocol/wire/testdata/samples.txt");
}

TEST(WireFormat, MessagesOfAnEarlierBuildAreRead) {
  std::multimap<std::string, Bytes> earlier;
  std::ifstream file("actors/protocol/wire/testdata/messages.txt");
  for (std::string name, hex; file >> name >> hex;) earlier.emplace(name.substr(0, name.find('.')), from_hex(hex));
  EXPECT_EQ(earlier.size(), 66u);
  for (const auto& message : all_messages()) {
    const auto [first, last] = earlier.equal_range(message.name);
    for (auto it = first; it != last; ++it) EXPECT_TRUE(same(repeated(message, it->second), it->second)) << message.name;
    earlier.erase(first, last);
  }
  EXPECT_TRUE(earlier.empty());
}

TEST(WireFormat, EveryFieldOfTheSchemaIsListed) {
  for (const auto& message : all_messages()) EXPECT_TRUE(message.expect(repeated(message, message.all))) << message.name;
}

// Spoils a message, and returns the text with which the receiver refuses it.
class Refusals {
 public:
  template <class T, class Spoil>
  Refusals& add(const char* name, T value, Spoil spoil) {
    spoil(value);
    const auto back = from_bytes<T>(to_bytes(value));
    EXPECT_FALSE(back) << name;
    if (back) return *this;
    EXPECT_EQ(back.error().code(), Code::kInvalidArgument) << name;
    text += std::string(name) + ": " + back.error().message() + "\n";
    return *this;
  }
  std::string text;
};

TEST(WireFormat, EveryRefusalHasItsText) {
  const std::string zero("x\0y", 3), long_text(RowBounds::kMaxText + 1, 'x'), long_bytes(GangSpec::kMaxCreationSpec + 1, 'x');
  const std::vector<std::string> many_texts((std::size_t{1} << 20) + 1);
  const auto many_resources = [] {
    Resources out;
    for (std::size_t i = 0; i <= RowBounds::kMaxResources; ++i) out.set_units(std::to_string(i), 1);
    return out;
  };
  const auto many_pairs = [] {
    std::map<std::string, std::string> out;
    for (std::size_t i = 0; i <= RowBounds::kMaxPairs; ++i) out[std::to_string(i)];
    return out;
  };
  const auto too_much = [] {
    Resources out;
    out.set_units("CPU", RowBounds::kMaxUnits + 1);
    return out;
  };
  const auto a_gang = sample<GangSpec, wire::CreateGang>();
  const auto group = sample<GroupSpec, wire::CreateGroup>();
  const auto rows = sample<ListReply, wire::ListReply>();
  const auto process = sample<ProcessReport, wire::ProcessReport>();
  const auto metrics = sample<ReportedMetrics, wire::ReportedMetrics>();
  HostActor hosted;
  hosted.rank = 2;
  hosted.world_size = 3;
  Refusals all;
  all.add("worker state", WorkerUpdate{}, [](auto& v) { v.state = static_cast<WorkerState>(99); })
      .add("endpoint", WorkerUpdate{}, [&](auto& v) { v.endpoint = long_text; })
      .add("role of an update", WorkerUpdate{}, [&](auto& v) { v.role = long_text; })
      .add("driver's name", RegisterDriver{}, [&](auto& v) { v.name = long_text; })
      .add("role", Attach{}, [&](auto& v) { v.role = long_text; })
      .add("resources", RegisterNode{}, [&](auto& v) { v.resources = many_resources(); })
      .add("amount", RegisterNode{}, [&](auto& v) { v.resources = too_much(); })
      .add("labels of a node", RegisterNode{}, [&](auto& v) { v.labels = many_pairs(); })
      .add("texts", Heads{}, [&](auto& v) { v.endpoints = many_texts; })
      .add("actors", a_gang, [](auto& v) { v.actors.resize(GangSpec::kMaxActors + 1); })
      .add("two actors", a_gang, [](auto& v) { v.actors.resize(2); })
      .add("handle", a_gang, [](auto& v) { v.handle = std::string(GangSpec::kMaxHandle + 1, 'x'); })
      .add("creation spec", a_gang, [&](auto& v) { v.creation_spec = long_bytes; })
      .add("name", a_gang, [](auto& v) { v.name = std::string(GangSpec::kMaxName + 1, 'x'); })
      .add("restarts", a_gang, [](auto& v) { v.max_restarts = -2; })
      .add("retries", a_gang, [](auto& v) { v.max_task_retries = -2; })
      .add("launch kind", a_gang, [](auto& v) { v.launch.kind = static_cast<Launch::Kind>(4); })
      .add("zero byte", a_gang, [&](auto& v) { v.launch.program = zero; })
      .add("zero byte of argv", a_gang, [&](auto& v) { v.launch.argv = {zero}; })
      .add("zero byte of a variable", a_gang, [&](auto& v) { v.launch.env = {{zero, ""}}; })
      .add("argv", a_gang, [&](auto& v) { v.launch.argv = many_texts; })
      .add("environment", a_gang, [](auto& v) { v.launch.env.resize(10'001); })
      .add("labels", a_gang, [](auto& v) { v.where.labels.resize(1001); })
      .add("values of a label", a_gang, [&](auto& v) { v.where.prefers = {{"a", many_texts, false}}; })
      .add("workers of a job", JobSpec{}, [](auto& v) { v.num_workers = GangSpec::kMaxActors + 1; })
      .add("submission", JobSpec{}, [](auto& v) { v.submission.id = std::string(Submission::kMaxId + 1, 'x'); })
      .add("submission of a row", JobRow{}, [](auto& v) { v.submission.entrypoint = std::string(Submission::kMaxText + 1, 'x'); })
      .add("scheduling", SetNodeScheduling{}, [](auto& v) { v.scheduling = static_cast<NodeScheduling>(3); })
      .add("deadline", SetNodeScheduling{}, [](auto& v) { v.deadline_ms = SetNodeScheduling::kMaxDeadlineMs + 1; })
      .add("strategy", group, [](auto& v) { v.strategy = static_cast<Strategy>(4); })
      .add("bundles", group, [](auto& v) { v.bundles.resize(GroupSpec::kMaxBundles + 1); })
      .add("labels of bundles", group, [](auto& v) { v.labels.resize(GroupSpec::kMaxBundles + 1); })
      .add("labels of a bundle", group, [](auto& v) { v.labels[0].resize(1001); })
      .add("name of a group", group, [](auto& v) { v.name_space = std::string(GangSpec::kMaxName + 1, 'x'); })
      .add("strategy of a row", GroupRow{}, [](auto& v) { v.strategy = static_cast<Strategy>(4); })
      .add("group state", GroupRow{}, [](auto& v) { v.state = static_cast<GroupState>(4); })
      .add("bundles of a row", GroupRow{},
           [](auto& v) {
             v.bundles.resize(GroupSpec::kMaxBundles + 1);
             v.nodes.resize(v.bundles.size());
           })
      .add("found actor", FoundActor{}, [&](auto& v) { v.handle = long_bytes; })
      .add("world size", hosted, [](auto& v) { v.world_size = GangSpec::kMaxActors + 1; })
      .add("no world", hosted, [](auto& v) { v.world_size = 0; })
      .add("rank", hosted, [](auto& v) { v.rank = 3; })
      .add("members", HostedActor{}, [](auto& v) { v.members.resize(GangSpec::kMaxActors + 1); })
      .add("attributes", SetAttributes{}, [&](auto& v) { v.attributes = many_pairs(); })
      .add("kind of list", ListRequest{}, [](auto& v) { v.what = static_cast<ListRequest::What>(5); })
      .add("actor state", ActorRow{}, [](auto& v) { v.state = static_cast<ActorState>(5); })
      .add("job state", JobRow{}, [](auto& v) { v.state = static_cast<JobState>(5); })
      .add("rows", rows, [](auto& v) { v.nodes[1].state = static_cast<NodeState>(2); })
      .add("worker state of a row", rows, [](auto& v) { v.workers[0].state = static_cast<WorkerState>(4); })
      .add("sums", ClusterStatus{}, [&](auto& v) { v.total = many_resources(); })
      .add("signal", StopWorker{}, [](auto& v) { v.signal = 32; })
      .add("launch of a worker", StartWorker{}, [&](auto& v) { v.launch.cwd = zero; })
      .add("keys", ObjectRef{}, [](auto& v) { v.contains.resize((1 << 20) + 1); })
      .add("kind of change", CountObjects{{{}}, 0}, [](auto& v) { v.changes[0].kind = static_cast<CountObjects::Change::Kind>(4); })
      .add("kind of inspection", Inspect{}, [](auto& v) { v.what = static_cast<Inspect::What>(4); })
      .add("state of a task", process, [](auto& v) { v.tasks[1].state = static_cast<TaskState>(7); })
      .add("state of an object", process, [](auto& v) { v.objects[0].state = static_cast<ObjectState>(3); })
      .add("metric's name", metrics, [](auto& v) { v.metrics[0].name = "a b"; })
      .add("label's name", metrics, [](auto& v) { v.metrics[0].samples[0].labels[0].first = ""; })
      .add("kind of metric", metrics, [](auto& v) { v.metrics[0].kind = static_cast<MetricKind>(4); })
      .add("counts", metrics, [](auto& v) { v.metrics[0].samples[0].counts.resize((1 << 20) + 1); })
      .add("bounds", metrics, [](auto& v) { v.metrics[0].bounds.resize((1 << 20) + 1); });
  expect_golden(all.text, "actors/protocol/wire/testdata/refusals.txt");
}

}  // namespace
}  // namespace shoal::actors
