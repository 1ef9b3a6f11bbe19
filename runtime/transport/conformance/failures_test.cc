#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/transport/conformance/transports.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

class Failures : public testing::TestWithParam<TestedTransport> {
 protected:
  // Runs the program on every rank of a new group.
  void run(int world, const std::function<void(Communicator&)>& program) {
    group_ = GetParam().make(world);
    run_ranks(*group_, world, program);
  }
  bool reforms() const { return GetParam().scope != TestedTransport::Scope::kMessages; }

  std::unique_ptr<TestGroup> group_;
};

void expect_error(const Result<void>& result, Code code, const std::string& reason, const std::vector<std::string>& texts = {}) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), code) << result.error().to_string();
  EXPECT_EQ(result.error().reason(), reason) << result.error().to_string();
  for (const auto& t : texts) EXPECT_NE(result.error().to_string().find(t), std::string::npos) << result.error().to_string();
}

void expect_done(const WorkPtr& work) {
  const auto ended = work->wait();
  EXPECT_TRUE(ended) << ended.error().to_string();
}

// The result of the operation that fails first: `work`, or the barrier after it. `work` may succeed on a rank whose part was complete.
Result<void> first_failure(Communicator& c, const WorkPtr& work) {
  auto ended = work->wait();
  return ended ? c.barrier({})->wait() : ended;
}

TEST_P(Failures, CallsThatDifferEndOnEveryRank) {
  using Program = std::function<WorkPtr(Communicator&, Floats&)>;
  const Program of_the_others = [](auto& c, auto& v) { return c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {}); };
  const std::vector<std::pair<std::string, Program>> of_rank_one = {
      {"length", [](auto& c, auto& v) { return c.all_reduce(in(v).first(20), out(v).first(20), DType::kFloat32, ReduceOp::kSum, {}); }},
      {"dtype", [](auto& c, auto& v) { return c.all_reduce(in(v), out(v), DType::kBFloat16, ReduceOp::kSum, {}); }},
      {"reduction", [](auto& c, auto& v) { return c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kMax, {}); }},
      {"collective", [](auto& c, auto& v) { return c.broadcast(out(v), 0, DType::kFloat32, {}); }},
      {"barrier", [](auto& c, auto&) { return c.barrier({}); }},
  };
  for (const auto& [name, program] : of_rank_one) {
    SCOPED_TRACE(name);
    run(3, [&](Communicator& c) {
      Floats v(10);
      ASSERT_TRUE(c.barrier({})->wait());
      expect_error(first_failure(c, c.rank() == 1 ? program(c, v) : of_the_others(c, v)), Code::kInvalidArgument, "Diverged");
      expect_error(c.barrier({})->wait(), Code::kInvalidArgument, "Diverged");
      EXPECT_TRUE(c.failed());
    });
  }
}

TEST_P(Failures, CountsThatDifferEndOnEveryRank) {
  run(2, [&](Communicator& c) {
    const std::vector<std::size_t> counts = c.rank() == 0 ? std::vector<std::size_t>{4, 12} : std::vector<std::size_t>{8, 8};
    Floats mine(counts[static_cast<std::size_t>(c.rank())] / sizeof(float)), got(4);
    const auto work = c.all_gather(in(mine), out(got), counts, DType::kFloat32, {});
    expect_error(first_failure(c, work), Code::kInvalidArgument, "Diverged");
  });
}

TEST_P(Failures, AnAllToAllWhoseSizesDoNotMeetIsNamed) {
  run(2, [&](Communicator& c) {
    Floats mine(4), got(4);
    const std::vector<std::size_t> sends{8, 8}, receives = c.rank() == 0 ? std::vector<std::size_t>{8, 8} : std::vector<std::size_t>{4, 8};
    const auto work = c.all_to_all(in(mine), out(got).first(receives[0] + receives[1]), sends, receives, DType::kFloat32, {});
    expect_error(first_failure(c, work), Code::kInvalidArgument, "Diverged", {"rank 0 sends 8 bytes to rank 1, which expects 4"});
  });
}

TEST_P(Failures, AMessageOfAnotherSizeOrTagFailsTheGroup) {
  for (const bool other_tag : {true, false}) {
    run(2, [&](Communicator& c) {
      Floats v(4);
      const std::uint32_t tag = other_tag ? 2 : 3;
      const auto work = c.rank() == 0 ? c.receive(out(v), 1, DType::kFloat32, 3, {})
                                      : c.send(other_tag ? in(v) : in(v).first(8), 0, DType::kFloat32, tag, {});
      expect_error(first_failure(c, work), Code::kInvalidArgument, "Diverged", {"rank 1 sends", "tag 3"});
    });
  }
}

TEST_P(Failures, ARankThatHasLeftIsNamed) {
  for (const bool message : {true, false}) {
    run(2, [&](Communicator& c) {
      ASSERT_TRUE(c.barrier({})->wait());
      if (c.rank() == 1) return;
      Floats v(4);
      const auto work = message ? c.receive(out(v), 1, DType::kFloat32, 0, {}) : c.barrier({});
      expect_error(work->wait(), Code::kUnavailable, "ActorDied", {"rank 1 has left"});
    });
  }
}

TEST_P(Failures, ARankThatHasLeftMakesNoCalls) {
  run(2, [&](Communicator& c) {
    c.leave();
    Floats v(2);
    const int other = 1 - c.rank();
    for (const auto& work :
         {c.send(in(v), other, DType::kFloat32, 0, {}), c.receive(out(v), other, DType::kFloat32, 0, {}), c.barrier({})}) {
      expect_error(work->wait(), Code::kUnavailable, "Closed");
    }
  });
}

TEST_P(Failures, ADeathEndsEveryOperation) {
  run(3, [&](Communicator& c) {
    expect_done(c.barrier({}));
    if (c.rank() == 1) return group_->kill(1, "killed by SIGKILL");
    Floats v{static_cast<float>(c.rank())};
    const auto work = c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {});
    expect_error(work->wait(), Code::kUnavailable, "ActorDied", {"rank 1", "SIGKILL"});
    expect_error(c.receive(out(v), 1, DType::kFloat32, 0, {})->wait(), Code::kUnavailable, "ActorDied", {"SIGKILL"});
    if (!reforms()) {
      EXPECT_EQ(c.reform().error().code(), Code::kUnimplemented);
      return;
    }
    EXPECT_EQ(c.lost(), std::vector<int>{1});
    const auto next = c.reform().value();
    EXPECT_EQ(next->generation(), 2u);
    EXPECT_EQ(next->world_size(), 2);
    EXPECT_EQ(next->rank(), c.rank() == 0 ? 0 : 1);
    expect_done(next->all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {}));
    EXPECT_EQ(v[0], 2);
  });
}

TEST_P(Failures, AbortEndsPendingCallsOnEveryRankWithTheFirstCause) {
  run(3, [&](Communicator& c) {
    ASSERT_TRUE(c.barrier({})->wait());
    if (c.rank() == 2) {
      c.abort(cancelled("the job is over").with_reason("Aborted"));
      c.abort(internal("later"));
      EXPECT_EQ(c.failed()->code(), Code::kCancelled);
    }
    const auto work = c.barrier({});
    expect_error(work->wait(), Code::kCancelled, "Aborted", {"the job is over"});
    EXPECT_TRUE(work->ended());
    EXPECT_EQ(c.failed()->code(), Code::kCancelled);
  });
}

TEST_P(Failures, ALateRankIsAnErrorOnEveryRank) {
  std::atomic<bool> late{false};
  run(2, [&](Communicator& c) {
    ASSERT_TRUE(c.barrier({})->wait());
    if (c.rank() == 1) {
      while (!late) std::this_thread::yield();
    }
    Call call;
    call.timeout = 100ms;
    expect_error(c.barrier(call)->wait(), Code::kDeadlineExceeded, "Late");
    late = true;
  });
}

TEST_P(Failures, LostRanksAreReadWhileAnotherThreadWaits) {
  run(2, [&](Communicator& c) {
    Floats v(4);
    expect_done(c.barrier({}));
    const int other = 1 - c.rank();
    if (c.rank() == 0) {
      Call call;
      call.timeout = 60s;  // a hang guard: a busy machine needs seconds for the turns below
      const auto work = c.receive(out(v), other, DType::kFloat32, 0, call);
      std::thread waits([&] { expect_done(work); });
      for (int i = 0; i < 1000; ++i) {
        EXPECT_TRUE(c.lost().empty());
        std::this_thread::yield();
      }
      expect_done(c.send(in(v), other, DType::kFloat32, 0, {}));
      waits.join();
    } else {
      expect_done(c.receive(out(v), other, DType::kFloat32, 0, {}));
      expect_done(c.send(in(v), other, DType::kFloat32, 0, {}));
    }
    expect_done(c.barrier({}));
  });
}

// The child closes its copies, and changes nothing for its parent.
TEST_P(Failures, AForkedChildIsNoRank) {
  if (!GetParam().checks_forks) GTEST_SKIP();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "other threads may hold locks of the sanitizer's allocator, which the child would wait for";
#endif
  run(2, [&](Communicator& c) {
    Floats v(4);
    expect_done(c.barrier({}));
    const int other = 1 - c.rank();
    const auto pending = c.rank() == 0 ? c.receive(out(v), other, DType::kFloat32, 0, {}) : nullptr;
    if (c.rank() == 0) {
      const pid_t child = fork();
      if (child == 0) {
        const auto is_forked = [](const Result<void>& result) { return !result && result.error().reason() == "Forked"; };
        const bool refused = is_forked(c.barrier({})->wait()) && is_forked(c.send(in(v), other, DType::kFloat32, 0, {})->wait()) &&
                             c.reform().error().reason() == "Forked";
        c.abort(internal("of the child"));
        (void)c.lost();
        c.leave();
        c.~Communicator();
        _exit(refused ? 0 : 1);
      }
      int status = 1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    } else {
      expect_done(c.send(in(v), other, DType::kFloat32, 0, {}));
    }
    if (pending) expect_done(pending);
    expect_done(c.barrier({}));
    EXPECT_FALSE(c.failed());
  });
}

TEST_P(Failures, RefusedCallsHaveNoEffect) {
  run(2, [&](Communicator& c) {
    Floats v(4);
    const std::vector<std::size_t> counts{8, 8}, too_few{16}, odd{7, 9};
    const auto refused = [](const WorkPtr& work, Code code, const std::string& text) {
      EXPECT_TRUE(work->ended());
      expect_error(work->wait(), code, "", {text});
    };
    refused(c.all_reduce(in(v), out(v), DType::kInt16, ReduceOp::kSum, {}), Code::kUnimplemented, "int16");
    refused(c.all_reduce(in(v), out(v).first(12), DType::kFloat32, ReduceOp::kSum, {}), Code::kInvalidArgument, "16 bytes, the output 12");
    refused(c.all_reduce(in(v).first(7), out(v).first(7), DType::kFloat32, ReduceOp::kSum, {}), Code::kInvalidArgument, "7 bytes");
    refused(c.all_gather(in(v), out(v), counts, DType::kFloat32, {}), Code::kInvalidArgument, "16 bytes, this rank's part 8");
    refused(c.all_gather(in(v), out(v), too_few, DType::kFloat32, {}), Code::kInvalidArgument, "1 counts for 2 ranks");
    refused(c.reduce_scatter(in(v), out(v), counts, DType::kFloat32, ReduceOp::kSum, {}), Code::kInvalidArgument,
            "16 bytes, this rank's part 8");
    refused(c.all_to_all(in(v), out(v), odd, counts, DType::kFloat32, {}), Code::kInvalidArgument, "no whole number of float32");
    refused(c.broadcast(out(v), 2, DType::kFloat32, {}), Code::kInvalidArgument, "rank 2 of a group of 2");
    refused(c.send(in(v), c.rank(), DType::kFloat32, 0, {}), Code::kInvalidArgument, "itself");
    refused(c.receive(out(v), -1, DType::kFloat32, 0, {}), Code::kInvalidArgument, "rank -1");
    EXPECT_FALSE(c.failed());
    ASSERT_TRUE(c.barrier({})->wait());
  });
}

std::vector<TestedTransport> that_fail_safely() {
  auto out = tested_transports();
  std::erase_if(out, [](const TestedTransport& t) { return !t.fails_safely; });
#ifdef __SANITIZE_THREAD__
  // Ranks whose calls differ may use each other's memory of the device at once before the error ends them. Nothing reads the result.
  std::erase_if(out, [](const TestedTransport& t) { return t.name == "cuda_ipc"; });
#endif
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Failures, testing::ValuesIn(that_fail_safely()), [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace shoal::runtime
