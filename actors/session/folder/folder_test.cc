#include "actors/session/folder/folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = "/tmp/shoal-folder.XXXXXX";
    ASSERT_NE(mkdtemp(base_.data()), nullptr);
    root_ = SessionFolder::root((base_ + "/home").c_str()).value();
  }
  void TearDown() override { std::filesystem::remove_all(base_); }
  runtime::SeededRandom random_{1};
  runtime::Token token_ = runtime::Token::random(random_);
  std::string base_, root_;
};

TEST_F(FolderTest, TheTokenIsForThisUserAlone) {
  const auto folder = SessionFolder::create(root_, token_, 0, 1).value();
  EXPECT_EQ(folder.token().value(), token_);
  struct stat info {};
  ASSERT_EQ(stat((folder.path() + "/token").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FolderTest, CertificatesAreForThisUserAlone) {
  const auto folder = SessionFolder::create(root_, token_, 0, 1).value();
  EXPECT_EQ(folder.credentials().value().tls, nullptr);
  EXPECT_FALSE(folder.authority());
  const runtime::Validity validity = runtime::valid_from(std::time(nullptr), 1000);
  SessionTls tls;
  tls.authority = runtime::make_authority("test", validity).value();
  tls.own = runtime::make_certificate(tls.authority, "10.0.0.1", validity).value();
  tls.host = "10.0.0.1";
  tls.interface = "eth1";
  tls.data_tls = true;
  ASSERT_TRUE(folder.write_tls(tls));
  const Credentials credentials = folder.credentials().value();
  EXPECT_EQ(credentials.token, token_);
  EXPECT_EQ(credentials.host, "10.0.0.1");
  EXPECT_EQ(credentials.interface, "eth1");
  EXPECT_TRUE(credentials.data_tls);
  EXPECT_TRUE(credentials.tls->listens());
  EXPECT_EQ(credentials.tls->authority(), runtime::Fingerprint::from_certificate(tls.authority.certificate).value());
  EXPECT_EQ(credentials.endpoint("x").to_string(), "10.0.0.1:0/@x");
  EXPECT_EQ(folder.authority().value().key, tls.authority.key);
  for (const auto& file : std::filesystem::directory_iterator(folder.path() + "/tls")) {
    EXPECT_EQ(file.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write) << file.path();
  }
  std::ofstream(folder.path() + "/tls/network.json") << R"({"interface": 7})";
  EXPECT_EQ(folder.credentials().error().code(), Code::kDataLoss);
  ASSERT_TRUE(folder.write_tls(tls));
  std::filesystem::remove(folder.path() + "/tls/node.key");
  EXPECT_FALSE(folder.credentials());
}

TEST_F(FolderTest, AFolderThatOthersMayEnterIsRefused) {
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  EXPECT_FALSE(SessionFolder::root(root_.c_str()));
}

TEST_F(FolderTest, OnlyLivingProcessesMakeASessionRun) {
  const auto a = SessionFolder::create(root_, token_, 1000, 1).value();
  const auto b = SessionFolder::create(root_, token_, 2000, 2).value();
  ASSERT_TRUE(a.write_info({"127.0.0.1:1", "unix:@a", 5, ""}));
  ASSERT_TRUE(a.enter("head", getpid()));
  ASSERT_TRUE(b.enter("head", 999'999'999));
  const auto running = SessionFolder::running(root_);
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0].path(), a.path());
  EXPECT_EQ(running[0].processes()[0].role, "head");
  EXPECT_EQ(SessionFolder::at_address(root_, "127.0.0.1:1")->path(), a.path());
  EXPECT_EQ(SessionFolder::at_address(root_, "unix:@a")->path(), a.path());
  EXPECT_FALSE(SessionFolder::at_address(root_, "127.0.0.1:2"));
  ASSERT_TRUE(a.write_info({"[fd00::1]:1", "unix:@a", 5, ""}));
  EXPECT_EQ(SessionFolder::at_address(root_, "[fd00::2]:1,[FD00:0::1]:1")->path(), a.path());
  EXPECT_EQ(SessionFolder::at_address(root_, "fd00::1:1").error().code(), Code::kInvalidArgument);
  a.leave("head", getpid());
  EXPECT_TRUE(SessionFolder::running(root_).empty());
}

TEST_F(FolderTest, AProgramsOwnClusterIsFoundByItsAddressOnly) {
  const auto own = SessionFolder::create(root_, token_, 2000, 2).value();
  ASSERT_TRUE(own.write_info({"", "unix:@own", 5, ""}));
  ASSERT_TRUE(own.enter("local", getpid()));
  EXPECT_TRUE(own.is_private());
  EXPECT_EQ(SessionFolder::at_address(root_, "unix:@own")->path(), own.path());
  EXPECT_EQ(SessionFolder::at_address(root_, "auto").error().reason(), "NoCluster");
  const auto shared = SessionFolder::create(root_, token_, 1000, 1).value();
  ASSERT_TRUE(shared.write_info({"127.0.0.1:1", "unix:@shared", 5, "http://127.0.0.1:1"}));
  ASSERT_TRUE(shared.enter("head", getpid()));
  EXPECT_EQ(SessionFolder::at_address(root_, "auto")->path(), shared.path());
}

TEST_F(FolderTest, ADamagedFileIsAnError) {
  const auto folder = SessionFolder::create(root_, token_, 1000, 1).value();
  for (const char* text : {"", "[]", "{}", R"({"head": 5, "head_local": "unix:@a", "started_unix_ms": 0})"}) {
    std::ofstream(folder.path() + "/info.json") << text;
    EXPECT_EQ(folder.info().error().code(), Code::kDataLoss) << text;
  }
}

TEST_F(FolderTest, AFolderThatIsNoSessionIsNeverRemoved) {
  namespace fs = std::filesystem;
  for (int i = 0; i < 30; ++i) fs::create_directories(root_ + "/work" + std::to_string(i));
  fs::create_directories(root_ + "/20240101-000000-0000000a/logs");  // a folder whose name looks like a session's
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(SessionFolder::create(root_, token_, 1000 * i, static_cast<std::uint64_t>(i)));
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(fs::exists(root_ + "/work" + std::to_string(i)));
  EXPECT_TRUE(fs::exists(root_ + "/20240101-000000-0000000a"));
}

TEST_F(FolderTest, EndedSessionsAreKeptUpToABound) {
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(SessionFolder::create(root_, token_, 1000 * i, static_cast<std::uint64_t>(i)));
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(root_)) ++n;
  EXPECT_EQ(n, SessionFolder::kKeep + 1);
}

TEST_F(FolderTest, ASessionOfAnotherHostDoesNotCountAsEnded) {
  const auto theirs = SessionFolder::create(root_, token_, 0, 99);
  ASSERT_TRUE(theirs);
  std::ofstream(theirs->path() + "/host") << "elsewhere pid:[1]\n";
  for (int i = 1; i < 30; ++i) ASSERT_TRUE(SessionFolder::create(root_, token_, 1000 * i, static_cast<std::uint64_t>(i)));
  EXPECT_TRUE(std::filesystem::exists(theirs->path() + "/token"));
}

}  // namespace
}  // namespace shoal::actors
