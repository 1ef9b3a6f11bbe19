// Addresses of etcd, and connections to it in TLS and in clear text.
#include "scheduler/etcd/client.h"

#include <gtest/gtest.h>

#include "scheduler/etcd/etcd_fixture.h"

namespace shoal::scheduler::etcd {
namespace {

TEST_F(EtcdTest, AddressesAreReadAndMistakesNamed) {
  const auto address = Address::parse("etcd://h1:2379,h2:2380/train.7", {.tls = {}, .in_clear_text = true});
  ASSERT_TRUE(address);
  EXPECT_FALSE(address->in_tls());
  EXPECT_EQ(address->servers, (std::vector<std::string>{"h1:2379", "h2:2380"}));
  EXPECT_EQ(address->text(), "etcd://h1:2379,h2:2380/train.7");
  for (const std::string wrong :
       {"etcd://h:1", "etcd://h:1/", "etcd:///x", "etcd://h/x", "etcd://h:1,/x", "etcd://h:1/a/b", "redis://h:1/x", "etcdss://h:1/x"}) {
    const auto refused = Address::parse(wrong, {.tls = {}, .in_clear_text = true});
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message().find(wrong), std::string::npos);
  }
}

TEST_F(EtcdTest, BeyondLoopbackThereIsTlsOrAnExplicitWord) {
  for (const std::string here : {"127.0.0.1:1", "127.3.2.1:1", "localhost:1", "[::1]:1", "localhost:1,127.0.0.1:2"}) {
    EXPECT_TRUE(Address::parse("etcd://" + here + "/x")) << here;
  }
  for (const std::string there :
       {"10.0.0.1:1", "db:1", "127.0.0.1:1,db:2", "127.example.com:1", "localhost.example.com:1", "[::2]:1", "0.0.0.0:1"}) {
    const auto refused = Address::parse("etcd://" + there + "/x");
    ASSERT_FALSE(refused) << there;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.error().reason(), "TlsRequired");
    EXPECT_NE(refused.error().hint().find("--store-in-clear-text"), std::string::npos);
    EXPECT_NE(refused.error().hint().find("etcds://"), std::string::npos);
    EXPECT_TRUE(Address::parse("etcd://" + there + "/x", {.tls = {}, .in_clear_text = true})) << there;
  }
  const auto tls = Address::parse("etcds://h1:2379,127.0.0.1:1/x", {.tls = {"ca", "cert", "key"}});
  ASSERT_TRUE(tls);
  EXPECT_TRUE(tls->in_tls());
  EXPECT_EQ(tls->text(), "etcds://h1:2379,127.0.0.1:1/x");
  EXPECT_EQ(tls->tls.key, "key");
  for (const TlsFiles& some : {TlsFiles{}, TlsFiles{"ca", "", ""}, TlsFiles{"", "cert", "key"}, TlsFiles{"ca", "cert", ""}}) {
    const auto refused = Address::parse("etcds://127.0.0.1:1/x", {.tls = some, .in_clear_text = true});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().hint().find("--store-cert-file"), std::string::npos);
  }
  EXPECT_FALSE(Address::parse("etcd://127.0.0.1:1/x", {.tls = {"ca", "cert", "key"}}));  // certificates would protect nothing
}

TEST_F(EtcdTest, AMissingEtcdIsNamed) {
  Address nobody{{"127.0.0.1:" + std::to_string(free_port())}, "x"};
  EXPECT_EQ(Client::open(nobody, 60s).value()->grant(3).error().code(), Code::kUnavailable);
}

TEST_F(EtcdTest, AnEtcdWithUsersIsRefusedWithAHint) {
  const EtcdServer own;
  const auto etcd = HttpPost::make({}).value();
  const auto tell = [&](const std::string& path, const std::string& body) {
    const auto reply = etcd->post(own.url() + "/v3/auth/" + path, body, 60s);
    ASSERT_TRUE(reply && reply->status == 200) << path << ": " << (reply ? reply->body : reply.error().to_string());
  };
  tell("user/add", R"({"name":"root","password":"x"})");
  tell("role/add", R"({"name":"root"})");
  tell("user/grant", R"({"user":"root","role":"root"})");
  tell("enable", "{}");
  const auto refused = Client::open(own.address("x"), 60s).value()->txn(nlohmann::json::array(), nlohmann::json::array({put("k", "v")}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.error().reason(), "EtcdUsers");
  EXPECT_NE(refused.error().hint().find("etcdctl auth disable"), std::string::npos);
}

// etcd with TLS, as beyond loopback.
class TlsTest : public CandidacyTest {
 protected:
  static void SetUpTestSuite() {
    certificates_ = std::make_unique<Certificates>();
    server_ = std::make_unique<EtcdServer>(certificates_.get());
  }
  static void TearDownTestSuite() {
    server_.reset();
    certificates_.reset();
  }
  Error refused(const Address& address) {
    const auto granted = Client::open(address, 60s).value()->grant(3);
    return granted ? internal("it was taken") : granted.error();
  }
  static std::unique_ptr<Certificates> certificates_;
};
std::unique_ptr<Certificates> TlsTest::certificates_;

TEST_F(TlsTest, HeadsLeadAndFollowOverTls) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  auto old = open(*a.leadership, address(), 60s, 60s, 10ms);
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a"), row(TableName::kGangs, 1, std::string(3'000'000, 'x'))));
  const auto before = revision();
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "b")));
  until([&] { return is_forgotten(before); });
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  const auto records = open(*b.leadership, address())->load().value();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].bytes.view(), "b");
  EXPECT_EQ(records[1].bytes.size(), 3'000'000u);
}

TEST_F(TlsTest, AnEtcdThatAnotherAuthoritySignedIsNotBelieved) {
  auto there = address();
  there.tls.authority = certificates_->path("other.pem");
  const auto error = refused(there);
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_EQ(error.reason(), "CertificateRefused");
  EXPECT_NE(error.hint().find("--store-ca-file"), std::string::npos);
}

TEST_F(TlsTest, ACertificateForAnotherHostIsNotBelieved) {
  auto there = address();
  there.servers = {"localhost:" + std::to_string(server_->port())};
  EXPECT_EQ(refused(there).reason(), "CertificateRefused");
}

// etcd's alert may be lost, as in TLS 1.3 a request is sent before it arrives.
TEST_F(TlsTest, EtcdRefusesClientsWithoutATrustedCertificate) {
  auto there = address();
  there.tls = certificates_->files("ca", "stranger");
  const auto stranger = refused(there);
  EXPECT_EQ(stranger.code(), Code::kUnavailable);
  EXPECT_NE(stranger.hint().find("--store-cert-file"), std::string::npos);
  const auto nobody =
      HttpPost::make({certificates_->path("ca.pem"), "", ""}).value()->post(server_->url() + "/v3/lease/grant", R"({"TTL":"3"})", 60s);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), Code::kUnavailable);
  EXPECT_NE(nobody.error().hint().find("--store-cert-file"), std::string::npos);
}

TEST_F(TlsTest, ClearTextToATlsServerIsAnError) {
  auto there = address();
  there.tls = {};
  EXPECT_NE(refused(there).hint().find("etcds://"), std::string::npos);
  const EtcdServer clear;
  there.servers = clear.address("x").servers;
  there.tls = address().tls;
  const auto error = refused(there);
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_NE(error.hint().find("speaks no TLS"), std::string::npos);
}

TEST_F(TlsTest, MissingFilesAreNamed) {
  auto there = address();
  there.tls.key = certificates_->path("nowhere.key");
  const auto missing = Client::open(there, 60s);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().message().find(there.tls.key), std::string::npos);
  for (const std::string wrong : {"config", "stranger.key"}) {  // no key; another certificate's key
    there.tls.key = certificates_->path(wrong);
    EXPECT_EQ(refused(there).reason(), "CertificateRefused") << wrong;
  }
  there = address();
  there.tls.authority = certificates_->path("config");
  EXPECT_EQ(refused(there).reason(), "CertificateRefused");
}

}  // namespace
}  // namespace shoal::scheduler::etcd
