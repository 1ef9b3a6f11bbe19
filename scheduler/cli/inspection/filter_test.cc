#include "scheduler/cli/inspection/filter.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using nlohmann::json;

bool kept(const json& row, const std::string& filter) { return matches(row, parse_filter(filter).value()); }

TEST(Filter, RowsAreKeptByTheirFields) {
  const json row = {{"state", "ALIVE"}, {"pid", 7}, {"name", ""}, {"cause", nullptr}, {"labels", {{"zone", "a"}, {"a.b", "c"}}}};
  EXPECT_TRUE(kept(row, "state=ALIVE"));
  EXPECT_TRUE(kept(row, "state=alive"));
  EXPECT_FALSE(kept(row, "state=DEAD"));
  EXPECT_TRUE(kept(row, "state!=DEAD"));
  EXPECT_FALSE(kept(row, "state!=ALIVE"));
  EXPECT_TRUE(kept(row, "pid=7"));
  EXPECT_TRUE(kept(row, "labels.zone=a"));
  EXPECT_TRUE(kept(row, "labels.a.b=c"));
  EXPECT_FALSE(kept(row, "labels.zone.deeper=a"));
  EXPECT_TRUE(kept(row, "absent="));
  EXPECT_TRUE(kept(row, "cause="));
  EXPECT_FALSE(kept(row, "absent=x"));
  EXPECT_TRUE(kept(row, "name!=a=b"));
  for (const char* bad : {"", "state", "=x", "!=x"}) EXPECT_FALSE(parse_filter(bad)) << bad;
}

TEST(Filter, FieldsThatNoRowHasAreRaysNamesOrRefused) {
  const json rows = {{{"id", "1"}, {"class", "A"}}, {{"id", "2"}, {"node", "n"}, {"total", {{"CPU", 1}}}, {"labels", {{"zone", "a"}}}}};
  const auto key_of = [&](const std::string& filter, const std::string& what = "actors") {
    std::vector<Filter> filters = {parse_filter("id=1").value(), parse_filter(filter).value()};
    const auto resolved = resolve(rows, what, filters);
    return resolved ? filters[1].key : resolved.error().message();
  };
  EXPECT_EQ(key_of("labels.rack=b"), "labels.rack");
  EXPECT_EQ(key_of("class_name=A"), "class");
  EXPECT_EQ(key_of("node_id=n"), "node");
  EXPECT_EQ(key_of("resources_total.CPU=1"), "total.CPU");
  EXPECT_EQ(key_of("actor_id=1"), "id");
  EXPECT_EQ(key_of("placement_group_id=1", "groups"), "id");
  EXPECT_EQ(key_of("worker_id=1"), "actors have no 'worker_id' to filter by");
  EXPECT_EQ(key_of("idd!=1"), "actors have no 'idd' to filter by");
  std::vector<Filter> any = {parse_filter("idd=1").value()};
  EXPECT_TRUE(resolve(json::array(), "actors", any)) << "there is nothing to look at";
}

TEST(Yaml, ReadsAsWhatItWas) {
  const json rows = {{{"id", "00ff"}, {"state", "ALIVE"}, {"why", "a: b\n\"c\""}, {"yes", "no"}, {"empty", json::object()}, {"n", 1.5}},
                     {{"labels", {{"zone", "a"}}}, {"list", {1, "two"}}, {"none", nullptr}}};
  EXPECT_EQ(to_yaml(rows),
            "- empty: {}\n"
            "  id: \"00ff\"\n"
            "  n: 1.5\n"
            "  state: ALIVE\n"
            "  why: \"a: b\\n\\\"c\\\"\"\n"
            "  \"yes\": \"no\"\n"
            "- labels:\n"
            "    zone: a\n"
            "  list:\n"
            "    - 1\n"
            "    - two\n"
            "  none: null\n");
  EXPECT_EQ(to_yaml(json::array()), "[]\n");
  EXPECT_EQ(to_yaml(json::object({{"a\x1b", "\x7f\u0085\u202e \u00e9"}})), "\"a\\u001b\": \"\\u007f\\u0085\\u202e \u00e9\"\n");
}

}  // namespace
}  // namespace shoal::scheduler::cli
