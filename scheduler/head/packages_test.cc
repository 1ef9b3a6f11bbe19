#include "scheduler/head/packages.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <gtest/gtest.h>

#include "runtime/sim/sim_clock.h"

namespace shoal::scheduler {
namespace {

using actors::PackagePart;

constexpr std::uint64_t kMe = 1, kOther = 2;

class PackagesTest : public testing::Test {
 protected:
  PackagesTest() { open(); }
  ~PackagesTest() override { std::filesystem::remove_all(base_); }
  void open() {
    packages_.emplace(clock_, options_, [this](const std::set<std::string>& names) {
      ++num_looks_;
      std::set<std::string> out;
      std::ranges::set_intersection(names, used_, std::inserter(out, out.end()));
      return out;
    });
  }
  std::string name(char c) const {
    runtime::Sha256 digest;
    digest.add(std::as_bytes(std::span(contents_.at(c))));
    return digest.hex();
  }
  std::string file(char c) const { return name(c) + ".zip"; }
  Result<bool> put(char c, std::uint64_t total, std::uint64_t offset, const std::string& data, std::uint64_t from = kMe) {
    SHOAL_TRY(const auto has, packages_->put(from, {name(c), total, offset, data}));
    return has.whole;
  }
  Result<bool> put(char c, const std::string& data) { return put(c, data.size(), 0, data); }
  std::string got(char c, std::uint64_t offset = 0) {
    const auto part = packages_->get({name(c), 0, offset, {}});
    return part ? part->data : "(" + std::string(code_name(part.error().code())) + ")";
  }
  std::set<std::string> files() const {
    std::set<std::string> out;
    for (const auto& e : std::filesystem::directory_iterator(options_.folder)) out.insert(e.path().filename().string());
    return out;
  }
  void pass(runtime::Duration time) { clock_.advance_to(clock_.now() + time); }

  const std::string base_ = [] {
    std::string name = testing::TempDir() + "/packages-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
  runtime::SimClock clock_;
  Packages::Options options_{.folder = base_ + "/packages", .max_bytes = 100};
  std::map<char, std::string> contents_ = {{'a', "abcdef"}, {'b', "abcxyz"}, {'c', "whole"}};
  std::set<std::string> used_;
  int num_looks_ = 0;  // number of looks through all jobs and actors
  std::optional<Packages> packages_;
};

TEST_F(PackagesTest, APackageInPartsExistsWhenItIsComplete) {
  EXPECT_EQ(put('a', 6, 0, ""), false);  // a part without data only asks
  EXPECT_EQ(put('a', 6, 0, "abc"), false);
  EXPECT_EQ(got('a'), "(NotFound)");
  EXPECT_EQ(put('a', 6, 3, "def"), true);
  EXPECT_EQ(put('a', 0, 0, ""), true);
  EXPECT_EQ(got('a'), "abcdef");
  EXPECT_EQ(got('a', 4), "ef");
  EXPECT_EQ(got('a', 6), "");
  EXPECT_EQ(got('a', 7), "(InvalidArgument)");
  EXPECT_EQ(packages_->get({name('a'), 0, 4, {}})->total, 6u);
}

TEST_F(PackagesTest, PartsComeInOrderFromTheFirst) {
  EXPECT_EQ(put('a', 6, 3, "def").error().reason(), "FromTheFirst");
  EXPECT_EQ(put('a', 6, 0, "abc"), false);
  EXPECT_EQ(put('a', 6, 5, "f").error().reason(), "FromTheFirst");
  EXPECT_EQ(put('a', 6, 0, "ab"), false);  // begins the package again
  EXPECT_EQ(put('a', 6, 2, "cdef"), true);
  EXPECT_EQ(got('a'), "abcdef");
}

TEST_F(PackagesTest, TwoThatBringTheSameDoNotMixIt) {
  EXPECT_EQ(put('a', 6, 0, "abc", kMe), false);
  EXPECT_EQ(put('a', 6, 0, "a", kOther), false);
  EXPECT_EQ(put('a', 6, 3, "def", kMe), true);
  EXPECT_EQ(put('a', 6, 1, "bc", kOther), true);  // the other connection has completed it
  EXPECT_EQ(got('a'), "abcdef");
  packages_->closed(kOther);
  EXPECT_EQ(files(), (std::set<std::string>{file('a')}));
}

TEST_F(PackagesTest, NamesAreTheSha256OfTheContent) {
  contents_['a'] = "abc";
  EXPECT_EQ(name('a'), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");  // the example in FIPS 180-4
}

TEST_F(PackagesTest, APackageWithAnotherDigestIsNotStored) {
  EXPECT_EQ(put('a', "abcxyz").error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(put('a', 6, 0, "xyz"), false);
  EXPECT_EQ(put('a', 6, 3, "def").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(put('a', 6, 0, "abc"), false);
  EXPECT_EQ(put('a', 6, 3, "def"), true);
  EXPECT_EQ(got('a'), "abcdef");
}

TEST_F(PackagesTest, AnIncompletePackageLeavesNothing) {
  EXPECT_EQ(put('a', 6, 0, "abc"), false);
  packages_->closed(kMe);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(put('a', 6, 3, "def").error().reason(), "FromTheFirst");
  EXPECT_EQ(put('b', 6, 0, "abc"), false);
  EXPECT_EQ(put('c', "whole"), true);
  open();  // as after a restart of a killed head
  EXPECT_EQ(got('c'), "whole");
  EXPECT_EQ(files(), (std::set<std::string>{file('c')}));
}

TEST_F(PackagesTest, InvalidNamesAndPartsAreRefused) {
  for (const std::string& bad : {std::string("../../etc/passwd"), std::string(64, 'g'), std::string(63, 'a'), std::string(64, 'A')}) {
    EXPECT_EQ(packages_->put(kMe, {bad, 1, 0, "x"}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(packages_->get({bad, 0, 0, {}}).error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(put('a', 2, 0, "abc").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(put('a', PackagePart::kMaxTotal + 1, 0, "abc").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(put('a', 10, ~std::uint64_t{0}, "abc").error().code(), Code::kInvalidArgument);
  const std::string large(PackagePart::kMaxBytes + 1, 'x');
  EXPECT_EQ(put('a', large).error().code(), Code::kInvalidArgument);
}

TEST_F(PackagesTest, BeyondTheBoundTheLeastRecentlyUsedIsRemovedFirst) {
  for (const char c : {'a', 'b', 'c', 'd'}) contents_[c] = std::string(40, c);
  EXPECT_EQ(put('a', contents_['a']), true);
  EXPECT_EQ(put('b', contents_['b']), true);
  EXPECT_EQ(put('c', contents_['c']).error().code(), Code::kResourceExhausted);  // the other two were used too recently to be removed
  pass(std::chrono::minutes(11));
  EXPECT_EQ(got('a'), contents_['a']);  // so that b is the least recently used
  used_ = {name('b')};
  EXPECT_EQ(put('c', contents_['c']).error().code(), Code::kResourceExhausted);
  used_ = {};
  EXPECT_EQ(put('c', contents_['c']), true);
  EXPECT_EQ(got('b'), "(NotFound)");
  EXPECT_EQ(got('a'), contents_['a']);
  pass(std::chrono::minutes(11));
  used_ = {name('a')};
  EXPECT_EQ(put('d', contents_['d']), true);
  EXPECT_EQ(got('c'), "(NotFound)");
  EXPECT_EQ(got('a'), contents_['a']);
}

TEST_F(PackagesTest, OneLookFindsThePackagesThatAreUsed) {
  for (const char c : {'a', 'b', 'c', 'd'}) contents_[c] = std::string(30, c);
  for (const char c : {'a', 'b', 'c'}) EXPECT_EQ(put(c, contents_[c]), true);
  pass(std::chrono::minutes(11));
  used_ = {name('a'), name('b')};
  num_looks_ = 0;
  EXPECT_EQ(put('d', contents_['d']), true);
  EXPECT_EQ(num_looks_, 1);
  EXPECT_EQ(got('c'), "(NotFound)");
}

TEST_F(PackagesTest, APackageThatArrivesCountsWithItsAnnouncedSize) {
  for (const char c : {'a', 'b', 'c'}) contents_[c] = std::string(60, c);
  EXPECT_EQ(put('a', 60, 0, "a", kMe), false);
  EXPECT_EQ(put('b', 60, 0, "b", kOther).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(put('a', 30, 1, "a", kMe).error().reason(), "FromTheFirst");  // another size than announced
  packages_->closed(kMe);
  EXPECT_EQ(put('b', 60, 0, "b", kOther), false);
}

TEST_F(PackagesTest, APackageThatStallsMakesRoomForAnother) {
  for (const char c : {'a', 'b'}) contents_[c] = std::string(60, c);
  EXPECT_EQ(put('a', 60, 0, "a", kMe), false);
  pass(std::chrono::minutes(2));
  EXPECT_EQ(put('b', 60, 0, "b", kOther), false);
  EXPECT_EQ(files(), (std::set<std::string>{file('b') + "." + std::to_string(kOther)}));
  EXPECT_EQ(put('a', 60, 1, "a", kMe).error().reason(), "FromTheFirst");
}

TEST_F(PackagesTest, TheNumberOfPackagesIsBounded) {
  options_.max_packages = 5;
  options_.max_arriving = 2;
  open();
  for (char c = 'd'; c <= 'k'; ++c) contents_[c] = std::string(3, c);
  EXPECT_EQ(put('d', 3, 0, "d"), false);
  EXPECT_EQ(put('e', 3, 0, "e"), false);
  EXPECT_EQ(put('f', 3, 0, "f").error().code(), Code::kResourceExhausted);
  EXPECT_EQ(put('d', 3, 1, "dd"), true);
  for (const char c : {'f', 'g', 'h'}) EXPECT_EQ(put(c, contents_[c]), true);
  EXPECT_EQ(put('i', contents_['i']).error().code(), Code::kResourceExhausted);
  pass(std::chrono::minutes(11));
  EXPECT_EQ(put('i', contents_['i']), true);
}

TEST_F(PackagesTest, ARemovedFileIsNotFound) {
  EXPECT_EQ(put('a', "abcdef"), true);
  std::filesystem::remove_all(options_.folder);
  EXPECT_EQ(got('a'), "(NotFound)");
  EXPECT_EQ(put('a', "abcdef"), true);
  EXPECT_EQ(got('a'), "abcdef");
}

TEST_F(PackagesTest, AHeadWithoutAFolderStoresNone) {
  options_.folder.clear();
  open();
  EXPECT_EQ(put('a', "abc").error().code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace shoal::scheduler
