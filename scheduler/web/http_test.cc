#include "scheduler/web/http.h"

#include <random>

#include <gtest/gtest.h>

#include "scheduler/web/guard.h"

namespace shoal::scheduler::web {
namespace {

struct Parsed {
  std::optional<Refusal> refusal;
  bool complete = false;
  HttpRequest request;
  int status() const { return refusal ? refusal->status : 0; }
};

Parsed parse(const std::string& text, std::size_t piece = 1 << 20) {
  HttpParser parser{{}};
  Parsed out;
  for (std::size_t at = 0; at < text.size() && !out.refusal; at += piece) out.refusal = parser.feed(text.substr(at, piece));
  out.complete = !out.refusal && parser.complete();
  out.request = parser.request();
  return out;
}

TEST(Http, ARequestIsReadHoweverItArrives) {
  const std::string text =
      "POST /api/jobs%2Fa/?limit=5&name=a+b%26c&flag HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 5\r\nX-Odd:  two words \r\n\r\nhello";
  for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
    const auto r = parse(text, piece);
    ASSERT_TRUE(r.complete) << piece << (r.refusal ? r.refusal->why : "");
    EXPECT_EQ(r.request.method, "POST");
    EXPECT_EQ(r.request.path, "/api/jobs/a/");
    EXPECT_EQ(r.request.query, (std::map<std::string, std::string>{{"limit", "5"}, {"name", "a b&c"}, {"flag", ""}}));
    EXPECT_EQ(r.request.header("x-odd"), "two words");
    EXPECT_EQ(r.request.body, "hello");
  }
  EXPECT_FALSE(parse(text.substr(0, text.size() - 1)).complete);
  EXPECT_TRUE(parse("GET / HTTP/1.1\r\n\r\n").complete);
}

TEST(Http, AnAnswerToAnEarlierVersionHasNoChunks) {
  const auto answer = [](const std::string& version) {
    const auto r = parse("GET / " + version + "\r\n\r\n");
    EXPECT_TRUE(r.complete);
    return response_head(200, "text/plain", std::nullopt, r.request.takes_chunks);
  };
  EXPECT_NE(answer("HTTP/1.1").find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_EQ(answer("HTTP/1.0").find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(answer("HTTP/1.0").find("Connection: close"), std::string::npos);
}

TEST(Http, AmbiguousRequestsAreRefused) {
  const auto get = [](const std::string& headers) { return "GET / HTTP/1.1\r\n" + headers + "\r\n"; };
  EXPECT_EQ(parse(get("Content-Length: 1\r\nContent-Length: 2\r\n")).status(), 400);
  EXPECT_EQ(parse(get("Host: a\r\nHOST: b\r\n")).status(), 400);
  EXPECT_EQ(parse(get("Transfer-Encoding: chunked\r\n")).status(), 501);
  EXPECT_EQ(parse(get("Content-Length: +1\r\n")).status(), 400);
  EXPECT_EQ(parse(get("Content-Length: 1x\r\n")).status(), 400);
  EXPECT_EQ(parse(get("Content-Length: \r\n")).status(), 400);
  EXPECT_EQ(parse(get("Content-Length : 1\r\n")).status(), 400);
  EXPECT_EQ(parse(get(" folded\r\n")).status(), 400);
  EXPECT_EQ(parse(get("A: b\nC: d\r\n")).status(), 400);
  EXPECT_EQ(parse(get(std::string("A: b\0c\r\n", 8))).status(), 400);
  EXPECT_EQ(parse("GET http://elsewhere/ HTTP/1.1\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("GET /a b HTTP/1.1\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("GET /%zz HTTP/1.1\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("GET /%00 HTTP/1.1\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("GET /% HTTP/1.1\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("GET / HTTP/2\r\n\r\n").status(), 505);
  EXPECT_EQ(parse("nonsense\r\n\r\n").status(), 400);
  EXPECT_EQ(parse("\r\n\r\n").status(), 400);
}

TEST(Http, NothingGrowsBeyondItsBound) {
  EXPECT_EQ(parse("GET / HTTP/1.1\r\nA: " + std::string(1 << 20, 'x')).status(), 431);
  EXPECT_EQ(parse("GET / HTTP/1.1\r\nA: " + std::string(1 << 20, 'x'), 100).status(), 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 65; ++i) many += "H" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(parse(many + "\r\n").status(), 431);
  EXPECT_EQ(parse("POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n").status(), 413);
  EXPECT_EQ(parse("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n").status(), 413);
  EXPECT_TRUE(parse("POST / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + std::string(1 << 20, 'x')).complete);
}

TEST(Http, NoAlteredRequestCrashesTheReader) {
  std::mt19937 random(1);
  const std::string good = "POST /api/jobs/?a=b HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 5\r\nAuthorization: Bearer x\r\n\r\nhello";
  for (int i = 0; i < 50'000; ++i) {
    std::string bad = good;
    for (int k = 0; k < 3; ++k) bad[random() % bad.size()] = static_cast<char>(random());
    (void)parse(bad, 1 + random() % 40);
  }
}

class GuardTest : public testing::Test {
 protected:
  int status(std::map<std::string, std::string> headers) {
    HttpRequest r;
    r.headers = std::move(headers);
    const auto refusal = guard_.check(r);
    return refusal ? refusal->status : 200;
  }
  const runtime::Token token_ = runtime::Token::parse(std::string(63, 'a') + "b").value();
  const std::string hex_ = http_token(token_);
  const Guard guard_{token_, "127.0.0.1", 8265};
  const std::string bearer_ = "Bearer " + hex_;
};

TEST_F(GuardTest, EveryRequestNeedsTheToken) {
  const std::string host = "127.0.0.1:8265";
  EXPECT_EQ(status({{"host", host}, {"authorization", bearer_}}), 200);
  EXPECT_EQ(status({{"host", host}}), 401);
  for (const std::string& bad : std::vector<std::string>{"", "Bearer", "Bearer ", "Basic " + hex_, "bearer " + hex_, hex_,
                                                         "Bearer " + std::string(64, 'a'), bearer_ + " ", bearer_.substr(0, 70)}) {
    EXPECT_EQ(status({{"host", host}, {"authorization", bad}}), 401) << bad;
  }
}

TEST_F(GuardTest, TheTokenOfAPageReadsAndChangesNothing) {
  const std::string page(64, 'c');
  const Guard guard(token_, "127.0.0.1", 8265, page);
  const auto status = [&guard](const std::string& method, const std::string& token) {
    HttpRequest request;
    request.method = method;
    request.headers = {{"host", "127.0.0.1:8265"}, {"authorization", "Bearer " + token}};
    const auto refusal = guard.check(request);
    return refusal ? refusal->status : 200;
  };
  EXPECT_EQ(status("GET", page), 200);
  EXPECT_EQ(status("POST", page), 401);
  EXPECT_EQ(status("DELETE", page), 401);
  EXPECT_EQ(status("GET", std::string(64, 'd')), 401);  // an earlier head's page token
  EXPECT_EQ(status("POST", hex_), 200);
  EXPECT_EQ(this->status({{"host", "127.0.0.1:8265"}, {"authorization", "Bearer "}}), 401);  // an empty token is no page token
}

// RFC 2104, as computed by `printf 'shoal http' | openssl dgst -sha256 -mac HMAC -macopt hexkey:aa..ab`.
TEST_F(GuardTest, TheTokenOfTheClusterItselfIsNothingForHttp) {
  EXPECT_EQ(hex_, "bbbb09f5a3b6936e84ff55457e080757445db72ecd21b76f26387d9507697492");
  EXPECT_EQ(status({{"host", "127.0.0.1:8265"}, {"authorization", "Bearer " + token_.hex()}}), 401);
}

TEST_F(GuardTest, ANameThatIsNotOursIsRefusedEvenWithTheToken) {
  for (const std::string& ours : std::vector<std::string>{"localhost:8265", "[::1]:8265", "127.0.0.1:8265"}) {
    EXPECT_EQ(status({{"host", ours}, {"authorization", bearer_}}), 200) << ours;
  }
  for (const std::string& foreign :
       std::vector<std::string>{"evil.example:8265", "127.0.0.1:8266", "127.0.0.1", "localhost", "", "127.0.0.1:8265.evil.example"}) {
    EXPECT_EQ(status({{"host", foreign}, {"authorization", bearer_}}), 403) << foreign;
  }
  EXPECT_EQ(status({{"authorization", bearer_}}), 403);
}

TEST_F(GuardTest, APageOfAnotherSiteIsRefusedEvenWithTheToken) {
  const auto from = [&](const std::string& origin) {
    return status({{"host", "localhost:8265"}, {"authorization", bearer_}, {"origin", origin}});
  };
  EXPECT_EQ(from("http://localhost:8265"), 200);
  for (const std::string& foreign :
       std::vector<std::string>{"http://evil.example", "https://localhost:8265", "null", "", "http://localhost:8266", "localhost:8265"}) {
    EXPECT_EQ(from(foreign), 403) << foreign;
  }
}

TEST_F(GuardTest, AnOpenPathNeedsOurNameAndNoOtherSite) {
  const auto open = [&](std::map<std::string, std::string> headers) {
    HttpRequest request;
    request.headers = std::move(headers);
    const auto refusal = guard_.check(request, false);
    return refusal ? refusal->status : 200;
  };
  EXPECT_EQ(open({{"host", "localhost:8265"}}), 200);
  EXPECT_EQ(open({{"host", "evil.example:8265"}}), 403);
  EXPECT_EQ(open({{"host", "localhost:8265"}, {"origin", "http://evil.example"}}), 403);
}

TEST(ResponseHead, HasAPolicyForAPage) {
  EXPECT_NE(response_head(200, "text/html", 3, true, "default-src 'none'").find("\r\nContent-Security-Policy: default-src 'none'\r\n"),
            std::string::npos);
  EXPECT_EQ(response_head(200, "text/plain", 3).find("Policy"), std::string::npos);
}

}  // namespace
}  // namespace shoal::scheduler::web
