#include "scheduler/web/jobs_api.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/function_worker.h"
#include "runtime/sim/sim_world.h"

namespace shoal::scheduler::web {
namespace {

using namespace std::chrono_literals;
using actors::ListReply;
using actors::ListRequest;
using actors::Method;
using nlohmann::json;
using runtime::Endpoint;
using runtime::Peer;

// A head that lists rows in pages of three.
class RowsOfHead final : public runtime::PeerHandler {
 public:
  explicit RowsOfHead(runtime::SimWorld& world) : world_(world), network_(world.fabric().attach("head", 1)) {
    listener_ = *network_->listen(Endpoint::tcp("head", 0), [this](std::unique_ptr<runtime::Connection> c) {
      peers_.push_back(std::make_unique<Peer>(std::move(c), world_.clock(), *this));
    });
  }
  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    if (static_cast<Method>(request.method) == Method::kWatchNode) {
      ListReply row;
      row.nodes.push_back(node);
      return responder.reply({to_bytes(row), {}, {}});
    }
    if (static_cast<Method>(request.method) != Method::kList) return responder.fail(unimplemented("this head only lists"));
    const auto asked = actors::from_bytes<ListRequest>(request.message.body).value();
    ++pages;
    if (pages == fails_at) return responder.fail(unavailable("this head ends"));
    ListReply page;
    const auto take = [&](const auto& from, auto& to) {
      for (const auto& row : from) {
        if (row.id.value <= asked.after) continue;
        if (to.size() == 3) return void(page.last = to.back().id.value);
        to.push_back(row);
      }
    };
    if (asked.what == ListRequest::What::kJobs) take(jobs, page.jobs);
    if (asked.what == ListRequest::What::kActors) take(actors, page.actors);
    if (asked.what == ListRequest::What::kWorkers) take(workers, page.workers);
    responder.reply({to_bytes(page), {}, {}});
  }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer&, const Error&) override {}
  Endpoint endpoint() const { return listener_->endpoint(); }

  std::vector<actors::JobRow> jobs;
  std::vector<actors::ActorRow> actors;
  std::vector<actors::WorkerRow> workers;
  actors::NodeRow node;
  int pages = 0, fails_at = 0;

 private:
  runtime::SimWorld& world_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

// A node that answers each request for a log with `answer`.
class LogsOfNode final : public runtime::PeerHandler {
 public:
  explicit LogsOfNode(runtime::SimWorld& world) : world_(world), network_(world.fabric().attach("node", 2)) {
    listener_ = *network_->listen(Endpoint::tcp("node", 0), [this](std::unique_ptr<runtime::Connection> c) {
      peers_.push_back(std::make_unique<Peer>(std::move(c), world_.clock(), *this));
    });
  }
  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    EXPECT_EQ(static_cast<Method>(request.method), Method::kReadLog);
    auto text = answer();
    if (!text) return responder.fail(text.error());
    responder.reply({{}, Bytes::copy_of(*text), {}});
  }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer&, const Error&) override {}
  Endpoint endpoint() const { return listener_->endpoint(); }

  std::function<Result<std::string>()> answer;

 private:
  runtime::SimWorld& world_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

// An answer, and the client that reads it: everything at once, or a part whenever reads() is called.
class ReadReply final : public HttpReply {
 public:
  explicit ReadReply(bool waits) : waits_(waits) {}
  void send(int s, const json& body) override {
    status = s;
    text = body.dump();
  }
  void send_text(const std::string&, const std::string&, const std::string&) override {}
  void begin(const std::string&) override { status = 200; }
  void write(std::string_view piece) override { text += piece; }
  void when_sent(std::function<void()> next) override {
    if (!waits_) return next();
    next_ = std::move(next);
  }
  void end() override { ended = true; }
  bool gone() const override { return false; }
  void reads() { std::exchange(next_, {})(); }

  int status = 0;
  std::string text;
  bool ended = false;

 private:
  const bool waits_;
  std::function<void()> next_;
};

class JobsApiTest : public testing::Test {
 protected:
  JobsApiTest() {
    for (std::uint64_t i = 1; i <= 7; ++i) {
      auto& job = head_.jobs.emplace_back();
      job.id = JobId{i};
      job.submission.id = "job-" + std::to_string(i);
      auto& actor = head_.actors.emplace_back();
      actor.id = ActorId{i};
      actor.class_name = i % 2 == 0 ? actors::kFunctionWorker : "Trainer";
    }
  }
  std::shared_ptr<ReadReply> get(const std::string& path, std::map<std::string, std::string> query = {}, bool waits = false) {
    const auto reply = std::make_shared<ReadReply>(waits);
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.query = std::move(query);
    api_->handle(request, reply);
    world_.run_for(500ms);
    return reply;
  }

  runtime::SimWorld world_{runtime::SimWorld::Options()};
  std::unique_ptr<runtime::SimNetwork> network_ = world_.fabric().attach("http", 1);
  RowsOfHead head_{world_};
  std::unique_ptr<Gateway> gateway_ =
      std::make_unique<Gateway>(world_.clock(), *network_, Gateway::Options{.head = head_.endpoint(), .logs = ""});
  std::unique_ptr<JobsApi> api_ = std::make_unique<JobsApi>(*gateway_, Surroundings(), "session");
};

TEST_F(JobsApiTest, AListHasNoCharactersThatControlATerminal) {
  head_.jobs[0].submission.id = "job\u202e";
  EXPECT_NE(get("/api/jobs/")->text.find("job\\u202e"), std::string::npos);
  EXPECT_EQ(get("/api/jobs/")->text.find("\u202e"), std::string::npos);
}

TEST_F(JobsApiTest, AllJobsAreSentPageByPageAsTheClientReadsThem) {
  const auto reply = get("/api/jobs/", {}, true);
  EXPECT_EQ(head_.pages, 1);
  EXPECT_NE(reply->text.find("job-3"), std::string::npos);
  reply->reads();
  world_.run_for(500ms);
  EXPECT_EQ(head_.pages, 2);
  EXPECT_FALSE(reply->ended);
  reply->reads();
  world_.run_for(500ms);
  EXPECT_TRUE(reply->ended);
  const json all = json::parse(reply->text);
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[6]["submission_id"], "job-7");
}

TEST_F(JobsApiTest, RowsHaveALimitATotalAndTheNextPage) {
  const json first = json::parse(get("/api/v0/jobs", {{"limit", "4"}})->text);
  ASSERT_EQ(first["rows"].size(), 4u);
  EXPECT_EQ(first["total"], 7);
  EXPECT_EQ(first["next"], "0000000000000004");
  head_.pages = 0;
  const json second = json::parse(get("/api/v0/jobs", {{"limit", "2"}, {"after", "0000000000000004"}})->text);
  ASSERT_EQ(second["rows"].size(), 2u);
  EXPECT_EQ(second["rows"][0]["id"], "0000000000000005");
  EXPECT_EQ(second["next"], "0000000000000006");
  EXPECT_EQ(second["total"], json());
  EXPECT_EQ(head_.pages, 1);
  const json last = json::parse(get("/api/v0/jobs", {{"after", "6"}})->text);
  EXPECT_EQ(last["rows"].size(), 1u);
  EXPECT_EQ(last["next"], json());
}

TEST_F(JobsApiTest, AHundredRowsAreTheDefault) {
  for (std::uint64_t i = 8; i <= 120; ++i) head_.jobs.emplace_back().id = JobId{i};
  const json page = json::parse(get("/api/v0/jobs")->text);
  EXPECT_EQ(page["rows"].size(), 100u);
  EXPECT_EQ(page["total"], 120);
  EXPECT_EQ(page["next"], "0000000000000064");
}

TEST_F(JobsApiTest, WorkersOfFunctionsAreNoActors) {
  const json page = json::parse(get("/api/v0/actors", {{"limit", "4"}})->text);
  EXPECT_EQ(page["rows"].size(), 4u);
  EXPECT_EQ(page["total"], 4);
  EXPECT_EQ(page["next"], json());
}

TEST_F(JobsApiTest, AListHasTheRowsOfAStateOrWithAText) {
  for (std::uint64_t i : {2, 5, 6}) head_.jobs[i].state = actors::JobState::kFailed;
  const json failed = json::parse(get("/api/v0/jobs", {{"state", "failed"}, {"limit", "2"}})->text);
  ASSERT_EQ(failed["rows"].size(), 2u);
  EXPECT_EQ(failed["rows"][1]["submission_id"], "job-6");
  EXPECT_EQ(failed["total"], 3);
  EXPECT_EQ(failed["next"], "0000000000000006");
  const json rest = json::parse(get("/api/v0/jobs", {{"state", "FAILED"}, {"after", "0000000000000006"}})->text);
  ASSERT_EQ(rest["rows"].size(), 1u);
  EXPECT_EQ(rest["next"], json());
  head_.jobs[3].cause = unavailable("its node is gone");
  EXPECT_EQ(json::parse(get("/api/v0/jobs", {{"contains", "node is"}})->text)["rows"][0]["submission_id"], "job-4");
  EXPECT_EQ(json::parse(get("/api/v0/jobs", {{"contains", "job-"}, {"state", "failed"}})->text)["total"], 3);
  EXPECT_EQ(json::parse(get("/api/v0/jobs", {{"contains", "submission_id"}})->text)["rows"].size(), 0u);  // a key is no value
}

TEST_F(JobsApiTest, AListWithoutATotalEndsWithItsLastRow) {
  const json first = json::parse(get("/api/v0/jobs", {{"limit", "2"}, {"total", "0"}})->text);
  EXPECT_EQ(first["total"], json());
  EXPECT_EQ(first["next"], "0000000000000002");
  EXPECT_EQ(head_.pages, 1);
}

TEST_F(JobsApiTest, AnAnswerThatTheHeadDoesNotFinishHasNoEnd) {
  head_.fails_at = 1;
  EXPECT_EQ(get("/api/v0/jobs")->status, 503);
  head_.pages = 0;
  head_.fails_at = 2;
  const auto cut = get("/api/v0/jobs");
  EXPECT_EQ(cut->status, 200);
  EXPECT_FALSE(cut->ended);
}

TEST_F(JobsApiTest, AWrongPageIsRefused) {
  const std::vector<std::map<std::string, std::string>> wrong = {{{"limit", "0"}}, {{"limit", "10001"}}, {{"limit", "4x"}},
                                                                 {{"limit", ""}},  {{"after", "job-4"}}, {{"offset", "4"}}};
  for (const auto& query : wrong) {
    const auto reply = get("/api/v0/jobs", query);
    EXPECT_EQ(reply->status, 400) << query.begin()->first << "=" << query.begin()->second;
    EXPECT_NE(reply->text.find(query.begin()->first), std::string::npos) << reply->text;
  }
}

TEST_F(JobsApiTest, AJobIsSoughtNoFurtherThanItsPage) {
  EXPECT_EQ(json::parse(get("/api/jobs/job-5")->text)["submission_id"], "job-5");
  EXPECT_EQ(head_.pages, 2);
  EXPECT_EQ(get("/api/jobs/job-8")->status, 404);
}

TEST_F(JobsApiTest, AnEmptyIdNamesNoJob) {
  head_.jobs[2].submission.id.clear();  // a driver's job has no submission id
  EXPECT_EQ(get("/api/jobs//")->status, 404);
  EXPECT_EQ(get("/api/jobs//logs")->status, 404);
  EXPECT_EQ(json::parse(get("/api/jobs/" + to_string(JobId{3}))->text)["job_id"], to_string(JobId{3}));
}

TEST_F(JobsApiTest, ANodesErrorIsNoEmptyLog) {
  const std::string folder = testing::TempDir() + "/kept_logs";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  constexpr WorkerId kWorker{8};
  LogBook::Options kept;
  kept.folder = folder;
  LogBook(kept).write(kWorker, Launcher::Stream::kOut, "kept\n");
  api_.reset();
  gateway_ = std::make_unique<Gateway>(world_.clock(), *network_, Gateway::Options{.head = head_.endpoint(), .logs = folder});
  api_ = std::make_unique<JobsApi>(*gateway_, Surroundings(), "session");
  LogsOfNode node(world_);
  head_.node.id = NodeId{5};
  head_.node.endpoint = node.endpoint().to_string();
  auto& worker = head_.workers.emplace_back();
  worker.id = kWorker;
  worker.node = head_.node.id;
  worker.role = "driver";
  worker.state = actors::WorkerState::kExited;

  node.answer = [] { return "printed\n"; };
  EXPECT_EQ(json::parse(get("/api/jobs/job-1/logs")->text)["logs"], "printed\nprinted\n");  // the two streams
  EXPECT_TRUE(get("/api/jobs/job-1/logs/tail")->ended);
  node.answer = [] { return fail(not_found("this node has no log of it")); };
  EXPECT_EQ(json::parse(get("/api/jobs/job-1/logs")->text)["logs"], "");
  for (const auto& error : {unavailable("this node refuses"), resource_exhausted("this node has no room")}) {
    node.answer = [&] { return fail(error); };
    const auto reply = get("/api/jobs/job-1/logs");
    EXPECT_EQ(reply->status, http_status(error)) << reply->text;
    EXPECT_NE(reply->text.find(error.message()), std::string::npos) << reply->text;
    EXPECT_FALSE(get("/api/jobs/job-1/logs/tail")->ended);
  }
  node.answer = [&] {
    head_.node.state = actors::NodeState::kDead;
    return fail(unavailable("this node ends"));
  };
  EXPECT_EQ(json::parse(get("/api/jobs/job-1/logs")->text)["logs"], "kept\n");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shoal::scheduler::web
