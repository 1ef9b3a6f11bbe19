#include "actors/api/codec/method_table.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace user {
struct Thing {};
}  // namespace user

namespace shoal::actors::api {
namespace {

struct Base {
  virtual ~Base() = default;
  virtual int inherited(int n) { return n; }
};

struct Counter : Base {
  Counter(Place, int start, const std::string& label);
  int add(int n) { return n; }
  int same_as_add(int n) { return n + 1; }
  int value() const { return 0; }
  void reset() noexcept {}
  std::string text() const noexcept { return ""; }
  int overloaded(int n) { return n; }
  double overloaded(double n) { return n; }
  int unlisted(int n) { return n + 2; }
  char of_a_type_of_its_own(long, char) { return 0; }
  int operator()(int n) { return n + 3; }
  static constexpr auto methods = shoal::methods(
      shoal::constructor<Place, int, const std::string&>, &Counter::add, &Counter::same_as_add, &Counter::value, &Counter::reset,
      &Counter::text, static_cast<double (Counter::*)(double)>(&Counter::overloaded), &Counter::inherited, &Counter::operator());
};

template <class T>
struct Box {
  T get() const { return {}; }
  static constexpr auto methods = shoal::methods(&Box::get);
};

struct WithPlace {
  explicit WithPlace(const Place&) {}
  void f() {}
  static constexpr auto methods = shoal::methods(&WithPlace::f);
};

struct NoActor {
  void f() {}
};

using Names = std::vector<std::string_view>;
template <class T>
Names names() {
  constexpr auto all = Table<T>::names();
  return {all.begin(), all.end()};
}

TEST(MethodsTest, NamesComeFromThePointers) {
  EXPECT_EQ(names<Counter>(), (Names{"add", "same_as_add", "value", "reset", "text", "overloaded", "inherited", "operator()"}));
  EXPECT_EQ(names<Box<std::vector<std::string>>>(), Names{"get"});
}

TEST(MethodsTest, APointerFindsItsName) {
  using T = Table<Counter>;
  EXPECT_EQ(T::name_of(&Counter::add), "add");
  EXPECT_EQ(T::name_of(&Counter::same_as_add), "same_as_add");
  EXPECT_EQ(T::name_of(&Counter::value), "value");
  EXPECT_EQ(T::name_of(&Counter::inherited), "inherited");
  EXPECT_EQ(T::name_of(&Counter::unlisted), "");
}

TEST(MethodsTest, ASignatureThatNoMethodHasIsKnownAtCompileTime) {
  static_assert(Table<Counter>::lists<decltype(&Counter::add)>());
  static_assert(!Table<Counter>::lists<decltype(&Counter::of_a_type_of_its_own)>());
  static_assert(Actor<Counter> && !Actor<NoActor>);
}

TEST(MethodsTest, ClassesHaveAFullNameAndAShortOne) {
  EXPECT_EQ(class_name<Counter>(), "Counter");
  EXPECT_EQ(class_name<user::Thing>(), "Thing");
  EXPECT_EQ(full_class_name<user::Thing>(), "user::Thing");
  EXPECT_TRUE(class_name<Box<std::string>>().starts_with("Box<std::")) << class_name<Box<std::string>>();
  EXPECT_NE(full_class_name<Box<int>>(), full_class_name<Box<long>>());
}

TEST(MethodsTest, ConstructorsAreListedOrTakeNothingButAPlace) {
  static_assert(Table<Counter>::Construction::kTakesPlace);
  static_assert(std::is_same_v<Table<Counter>::Construction::Params, List<int, const std::string&>>);
  static_assert(Table<WithPlace>::Construction::kTakesPlace);
  static_assert(std::is_same_v<Table<WithPlace>::Construction::Params, List<>>);
  static_assert(!Table<Box<int>>::Construction::kTakesPlace);
}

}  // namespace
}  // namespace shoal::actors::api
