#include "runtime/transport/choice/make_message_layer.h"

#include <condition_variable>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

using Made = std::vector<Result<std::shared_ptr<MessageLayer>>>;

std::shared_ptr<const Tls> test_tls() {
  constexpr std::int64_t kDay = 24 * 3600;
  const auto authority = make_authority("test", valid_from(std::time(nullptr), kDay)).value();
  const auto own = make_certificate(authority, "127.0.0.1", valid_from(std::time(nullptr), kDay)).value();
  return Tls::make(Fingerprint::from_certificate(authority.certificate).value(), own).value();
}

// The exchanges of two ranks, each a thread.
class Exchanges {
 public:
  std::vector<std::string> exchange(std::size_t rank, const std::string& own) {
    std::unique_lock lock(mutex_);
    texts_[rank] = own;
    const auto round = round_;
    if (++num_joined_ == texts_.size()) {
      results_ = texts_;
      num_joined_ = 0;
      ++round_;
      joined_.notify_all();
    }
    joined_.wait(lock, [&] { return round_ != round; });
    return results_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable joined_;
  std::vector<std::string> texts_{2}, results_;
  std::size_t num_joined_ = 0, round_ = 0;
};

// The layers of two ranks. `change` is given each rank's network, which is that of a cluster on loopback.
Made make(const std::function<void(int rank, MessageNetwork&)>& change) {
  Exchanges exchanges;
  Made made(2, fail(internal("not made")));
  const auto tls = test_tls();
  const auto of_rank = [&](int rank) {
    MessageNetwork network;
    network.rank = rank;
    network.world_size = 2;
    network.host = "127.0.0.1";
    network.tls = tls;
    network.exchange = [&, rank](const std::string& own) { return exchanges.exchange(static_cast<std::size_t>(rank), own); };
    change(rank, network);
    made[static_cast<std::size_t>(rank)] = make_message_layer(network);
  };
  std::thread other(of_rank, 1);
  of_rank(0);
  other.join();
  return made;
}

std::string text(const Result<std::shared_ptr<MessageLayer>>& made) { return made ? (*made)->name() : made.error().to_string(); }

TEST(MakeMessageLayer, OfAnEncryptedClusterIsTls) {
  for (const char* kind : {"", "tls"}) {
    const auto made = make([&](int, MessageNetwork& network) {
      network.encrypted = true;
      network.kind = kind;
    });
    EXPECT_EQ(text(made[0]), "tls");
    EXPECT_EQ(text(made[1]), "tls");
  }
}

TEST(MakeMessageLayer, RefusesAnotherTransportInAnEncryptedCluster) {
  for (const char* kind : {"tcp", "ucx", "gloo"}) {
    const auto made = make([&](int rank, MessageNetwork& network) {
      network.encrypted = true;
      if (rank == 1) network.kind = kind;
    });
    EXPECT_EQ(made[1].error().reason(), "NotEncrypted");
    EXPECT_NE(text(made[1]).find(std::string("SHOAL_TRANSPORT asks for '") + kind), std::string::npos) << text(made[1]);
    EXPECT_EQ(made[0].error().reason(), "Diverged");
    EXPECT_NE(text(made[0]).find(std::string(kind) + ", which is refused on rank 1"), std::string::npos) << text(made[0]);
  }
}

TEST(MakeMessageLayer, NamesRanksWhoseTransportsDiffer) {
  const auto made = make([](int rank, MessageNetwork& network) { network.kind = rank == 0 ? "tls" : "tcp"; });
  EXPECT_NE(text(made[0]).find("tls on rank 0, tcp on rank 1"), std::string::npos) << text(made[0]);
  EXPECT_NE(text(made[1]).find("tcp on rank 1, tls on rank 0"), std::string::npos) << text(made[1]);
}

TEST(MakeMessageLayer, ReportsAnUnknownInterfaceOnEveryRank) {
  for (const char* kind : {"tcp", "ucx"}) {
    const auto made = make([&](int rank, MessageNetwork& network) {
      network.kind = kind;
      network.interface = rank == 1 ? "eth99" : "lo";
    });
    EXPECT_EQ(made[1].error().reason(), "NoInterface") << text(made[1]);
    EXPECT_NE(text(made[0]).find("rank 1"), std::string::npos) << text(made[0]);
    EXPECT_NE(text(made[0]).find("eth99"), std::string::npos) << text(made[0]);
  }
}

TEST(MakeMessageLayer, TakesAnInterfaceOfTheNetworksChoiceIfTheHostHasNoneWithItsAddress) {
  const auto made = make([](int, MessageNetwork& network) {
    network.kind = "tcp";
    network.host = "203.0.113.7";  // as behind a translation of addresses
  });
  EXPECT_EQ(text(made[0]), "tcp");
  EXPECT_EQ(text(made[1]), "tcp");
}

}  // namespace
}  // namespace shoal::runtime
