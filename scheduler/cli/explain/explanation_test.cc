#include "scheduler/cli/explain/explanation.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

TEST(Explanation, AReasonIsFoundByItsNameByThePairAndInsideAMessage) {
  for (const char* text : {"ActorDied", "actordied", "Unavailable/ActorDied", "notfound/ACTORDIED", "error[Unavailable/ActorDied]: gone",
                           "error[Unavailable/ActorDied]", " ActorDied "}) {
    const auto found = explain(text);
    ASSERT_EQ(found.size(), 1u) << text;
    EXPECT_EQ(title_of(found[0]), "Unavailable/ActorDied, NotFound/ActorDied");
    EXPECT_EQ(found[0].kind, Explanation::Kind::kReason);
  }
  EXPECT_TRUE(explain("Cancelled/ActorDied").empty()) << "it is not seen with this code";
}

TEST(Explanation, ACodeIsFollowedByItsReasons) {
  const auto found = explain("unavailable");
  ASSERT_GT(found.size(), 20u);
  EXPECT_EQ(found[0].kind, Explanation::Kind::kCode);
  for (std::size_t i = 1; i < found.size(); ++i) EXPECT_TRUE(has_code(found[i], "Unavailable")) << found[i].name;
}

TEST(Explanation, AnExitCodeIsFoundByItsNumber) {
  const auto found = explain("93");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(title_of(found[0]), "exit code 93");
  EXPECT_TRUE(explain("94").empty());
}

TEST(Explanation, AMistypedWordHasASuggestion) {
  EXPECT_EQ(nearest_explained("ActorDeid"), "ActorDied");
  EXPECT_EQ(nearest_explained("unavailable/actordeid"), "ActorDied");
  EXPECT_EQ(nearest_explained("Unavailible"), "Unavailable");
  EXPECT_EQ(nearest_explained("zzzzzzzzzzzzzzzz"), "");
  EXPECT_TRUE(explain("").empty());
}

TEST(Explanation, EachEntryHasAMeaningAndNoNameIsThereTwice) {
  std::set<std::string> names;
  for (const auto& entry : all_explanations()) {
    EXPECT_TRUE(names.insert(std::string(entry.name)).second) << entry.name;
    EXPECT_FALSE(entry.meaning.empty()) << entry.name;
    if (entry.kind == Explanation::Kind::kExit) continue;
    EXPECT_FALSE(entry.remedy.empty()) << entry.name;
    EXPECT_EQ(!entry.causes.empty(), entry.kind == Explanation::Kind::kReason) << entry.name;
  }
}

}  // namespace
}  // namespace shoal::scheduler::cli
