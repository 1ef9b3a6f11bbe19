// One rank of a benchmark of the transports between hosts: collectives with checked values, and the round trip of 8 bytes.
//
//   transport --layer ucx|tcp|tls|raw|net --rank R --world N --folder F [--interface I] [--connections C] [--piece B] [--chunk B]
//             [--mib 8,64,256|0] [--reps 5] [--raw-mib 256]
//
// The ranks exchange their addresses in the folder F. Rank 0 prints one line of JSON for each figure. `raw` moves bytes over plain sockets
// between two ranks, one way and both ways: the limit that the others are compared with. `net` sends frames over the connections of actors
// (runtime/net) from rank 1 to rank 0 instead. All layers move --raw-mib one way; over ucx, tcp and tls as messages of the size of a frame
// of `net`, whose receiver copies each into one memory.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/core/fd.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/random.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/tcp/tcp_layer.h"
#include "runtime/transport/ucx/ucx_layer.h"

namespace shoal::runtime {
namespace {

struct Options {
  std::map<std::string, std::string> given;
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto it = given.find(name);
    return it == given.end() ? otherwise : it->second;
  }
  int number(const std::string& name, int otherwise) const { return std::stoi(text(name, std::to_string(otherwise))); }
};

constexpr std::size_t kMessage = 4 << 20;

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Waits, and ends this process after a failure.
void finish(const WorkPtr& work) {
  const auto ended = work->wait();
  if (ended) return;
  fmt::print(stderr, "{}\n", ended.error().to_string());
  std::exit(1);
}

// Files in a folder that all ranks see.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  void write(const std::string& name, const std::string& text) const {
    const std::string at = path_ + "/" + name;
    std::ofstream(at + ".new", std::ios::binary) << text;
    std::filesystem::rename(at + ".new", at);
  }
  std::string read(const std::string& name) const {
    while (!std::filesystem::exists(path_ + "/" + name)) std::this_thread::yield();
    std::ifstream in(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  const std::string path_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        rank_(options.number("rank", 0)),
        world_(options.number("world", 2)),
        layer_(options.text("layer", "tcp")),
        folder_(options.text("folder", ".")),
        clock_(make_real_clock(loop_)) {}

  int run();

 private:
  Result<std::vector<std::string>> exchange(const std::string& own) const {
    folder_.write(fmt::format("address.{}", rank_), own);
    std::vector<std::string> all;
    for (int r = 0; r < world_; ++r) all.push_back(folder_.read(fmt::format("address.{}", r)));
    return all;
  }
  std::shared_ptr<const Tls> tls() const;
  Result<std::shared_ptr<MessageLayer>> open() const;
  void print(const std::string& name, std::vector<double> values, const char* unit, const std::string& more = "") const;
  template <class F>
  void measure(Communicator& c, const std::string& name, double bytes, F&& start);
  bool collectives(Communicator& c, std::size_t mib);
  void round_trips(Communicator& c);
  void one_way(Communicator& c);
  void raw();
  Fd raw_socket() const;
  double move(int socket, bool sends, bool receives) const;
  void net();

  const Options& options_;
  const int rank_, world_;
  const std::string layer_;
  const Folder folder_;
  Loop loop_;
  const std::shared_ptr<Clock> clock_;
};

std::shared_ptr<const Tls> Bench::tls() const {
  constexpr std::int64_t kDay = 24 * 3600;
  if (rank_ == 0) {
    const auto validity = valid_from(clock_->unix_millis() / 1000, kDay);
    const auto authority = make_authority("bench", validity).value();
    const auto own = make_certificate(authority, "127.0.0.1", validity).value();
    folder_.write("authority", Fingerprint::from_certificate(authority.certificate).value().to_string());
    folder_.write("key", own.key);
    folder_.write("certificate", own.certificate);
  }
  const auto certificate = folder_.read("certificate");
  return Tls::make(Fingerprint::parse(folder_.read("authority")).value(), {certificate, folder_.read("key")}).value();
}

Result<std::shared_ptr<MessageLayer>> Bench::open() const {
  const auto by_folder = [this](const std::string& own) { return exchange(own); };
  const std::string interface = options_.text("interface", "");
  if (layer_ == "ucx") return make_ucx_layer({rank_, world_, by_folder, interface});
  TcpOptions options;
  options.rank = rank_;
  options.world_size = world_;
  options.exchange = by_folder;
  options.interface = interface;
  options.connections = options_.number("connections", options.connections);
  options.piece_bytes = static_cast<std::size_t>(options_.number("piece", static_cast<int>(options.piece_bytes)));
  if (layer_ == "tls") options.tls = tls();
  return make_tcp_layer(std::move(options));
}

void Bench::print(const std::string& name, std::vector<double> values, const char* unit, const std::string& more) const {
  if (rank_ != 0) return;
  std::sort(values.begin(), values.end());
  fmt::print("{{\"name\": \"{}.{}\", \"median\": {:.4f}, \"min\": {:.4f}, \"max\": {:.4f}, \"unit\": \"{}\"{}}}\n", layer_, name,
             values[values.size() / 2], values.front(), values.back(), unit, more);
  std::fflush(stdout);
}

template <class F>
void Bench::measure(Communicator& c, const std::string& name, double bytes, F&& start) {
  std::vector<double> rates;
  double cpu = 0;
  const int reps = options_.number("reps", 5);
  const int times = std::max(1, static_cast<int>(64e6 / bytes));
  for (int i = 0; i <= reps; ++i) {
    finish(c.barrier({}));
    const double cpu_before = cpu_seconds();
    const auto begin = clock_->now();
    for (int k = 0; k < times; ++k) finish(start());
    const double took = seconds(clock_->now() - begin) / times;
    if (i == 0) continue;  // the first touch of the memory
    rates.push_back(bytes / took / 1e9);
    cpu += (cpu_seconds() - cpu_before) / times;
  }
  print(name, rates, "GB/s each way", fmt::format(", \"cpu_s_per_gb\": {:.3f}", cpu / reps / bytes * 1e9));
}

bool Bench::collectives(Communicator& c, std::size_t mib) {
  const auto world = static_cast<std::size_t>(world_), self = static_cast<std::size_t>(rank_);
  const std::size_t part = (mib << 20) / sizeof(float) / world, numel = part * world;
  const std::vector<std::size_t> counts(world, part * sizeof(float));
  const auto value = [](std::size_t rank, std::size_t i) { return static_cast<float>(rank + 1) * static_cast<float>(i % 1021); };
  const auto bytes = [](std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); };
  std::vector<float> whole(numel), own(part), out(numel);
  for (std::size_t i = 0; i < numel; ++i) whole[i] = value(self, i);
  for (std::size_t i = 0; i < part; ++i) own[i] = value(self, self * part + i);
  const auto label = [&](const char* name) { return fmt::format("{}.{}", name, mib); };
  const double to_each = static_cast<double>(part * sizeof(float)), sent = to_each * (world_ - 1);
  measure(c, label("all_gather"), sent, [&] { return c.all_gather(bytes(own), bytes(out), counts, DType::kFloat32, {}); });
  bool right = true;
  for (std::size_t i = 0; i < numel; ++i) right &= out[i] == value(i / part, i);
  measure(c, label("reduce_scatter"), sent,
          [&] { return c.reduce_scatter(bytes(whole), bytes(own), counts, DType::kFloat32, ReduceOp::kSum, {}); });
  const auto sum = static_cast<float>(world_ * (world_ + 1) / 2);
  for (std::size_t i = 0; i < part; ++i) right &= own[i] == sum * static_cast<float>((self * part + i) % 1021);
  measure(c, label("all_reduce"), 2 * sent, [&] { return c.all_reduce(bytes(whole), bytes(out), DType::kFloat32, ReduceOp::kSum, {}); });
  for (std::size_t i = 0; i < numel; ++i) right &= out[i] == sum * static_cast<float>(i % 1021);
  if (!right) fmt::print(stderr, "rank {}: wrong values at {} MiB over {}\n", rank_, mib, layer_);
  return right;
}

void Bench::round_trips(Communicator& c) {
  std::uint64_t word = 1;
  const auto data = std::as_writable_bytes(std::span(&word, 1));
  constexpr int kTrips = 2000;
  std::vector<double> micros;
  for (int i = 0; i <= options_.number("reps", 5); ++i) {
    finish(c.barrier({}));
    const auto begin = clock_->now();
    for (int k = 0; k < kTrips && rank_ < 2; ++k) {
      for (const bool sends : {rank_ == 0, rank_ != 0}) {
        finish(sends ? c.send(data, 1 - rank_, DType::kUInt8, 0, {}) : c.receive(data, 1 - rank_, DType::kUInt8, 0, {}));
      }
    }
    if (i > 0) micros.push_back(seconds(clock_->now() - begin) / kTrips * 1e6);
  }
  print("round_trip.8B", micros, "us");
}

// From rank 1 to rank 0, in the memory of one message: the receiver posts it again for each.
void Bench::one_way(Communicator& c) {
  const int messages = static_cast<int>((static_cast<std::size_t>(options_.number("raw-mib", 256)) << 20) / kMessage);
  std::vector<std::byte> data(kMessage);
  std::vector<double> rates;
  for (int i = 0; i <= options_.number("reps", 5); ++i) {
    finish(c.barrier({}));
    const auto begin = clock_->now();
    for (int k = 0; k < messages && rank_ < 2; ++k)
      finish(rank_ != 0 ? c.send(data, 0, DType::kUInt8, 0, {}) : c.receive(data, 1, DType::kUInt8, 0, {}));
    finish(c.barrier({}));  // rank 0 has all
    if (i > 0) rates.push_back(static_cast<double>(messages) * static_cast<double>(kMessage) / seconds(clock_->now() - begin) / 1e9);
  }
  print("one_way", rates, "GB/s each way");
}

// ---- plain sockets -----------------------------------------------------------------------------------------------------------------

Fd Bench::raw_socket() const {
  const Fd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  inet_pton(AF_INET, options_.text("interface", "127.0.0.1").c_str(), &at.sin_addr);
  Fd out;
  if (rank_ == 0) {
    socklen_t length = sizeof at;
    if (bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listener.get(), 1) != 0) std::exit(2);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &length);
    folder_.write("raw", std::string(reinterpret_cast<const char*>(&at), sizeof at));
    out = Fd(accept(listener.get(), nullptr, nullptr));
  } else {
    std::memcpy(&at, folder_.read("raw").data(), sizeof at);
    out = Fd(socket(AF_INET, SOCK_STREAM, 0));
    if (connect(out.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::exit(2);
  }
  const int one = 1;
  setsockopt(out.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return out;
}

// Moves a fixed number of bytes and returns GB/s of each way.
double Bench::move(int socket, bool sends, bool receives) const {
  const std::size_t total = static_cast<std::size_t>(options_.number("raw-mib", 256)) << 20;
  std::vector<char> from(128 << 10), into(128 << 10);
  std::size_t to_send = sends ? total : 0, to_receive = receives ? total : 0;
  const auto begin = clock_->now();
  while (to_send > 0 || to_receive > 0) {
    ssize_t sent = 0, got = 0;
    if (to_receive > 0) got = recv(socket, into.data(), std::min(into.size(), to_receive), MSG_DONTWAIT);
    if (to_send > 0) sent = send(socket, from.data(), std::min(from.size(), to_send), MSG_DONTWAIT | MSG_NOSIGNAL);
    to_receive -= got > 0 ? static_cast<std::size_t>(got) : 0;
    to_send -= sent > 0 ? static_cast<std::size_t>(sent) : 0;
    if (got > 0 || sent > 0) continue;
    pollfd wait{socket, static_cast<short>((to_send > 0 ? POLLOUT : 0) | (to_receive > 0 ? POLLIN : 0)), 0};
    poll(&wait, 1, 1000);
  }
  char done = 0;  // both have got all
  (void)!send(socket, &done, 1, MSG_NOSIGNAL);
  (void)!recv(socket, &done, 1, MSG_WAITALL);
  return static_cast<double>(total) / seconds(clock_->now() - begin) / 1e9;
}

void Bench::raw() {
  const Fd socket = raw_socket();
  std::vector<double> one, both, trips;
  for (int i = 0; i <= options_.number("reps", 5); ++i) {
    const double first = move(socket.get(), rank_ == 0, rank_ != 0), second = move(socket.get(), true, true);
    const auto begin = clock_->now();
    constexpr int kTrips = 2000;
    char word[8] = {};
    for (int k = 0; k < kTrips; ++k) {
      for (const bool sends : {rank_ == 0, rank_ != 0}) {
        (void)!(sends ? send(socket.get(), word, 8, 0) : recv(socket.get(), word, 8, MSG_WAITALL));
      }
    }
    if (i == 0) continue;
    trips.push_back(seconds(clock_->now() - begin) / kTrips * 1e6);
    one.push_back(first);
    both.push_back(second);
  }
  print("one_way", one, "GB/s each way");
  print("both_ways", both, "GB/s each way");
  print("round_trip.8B", trips, "us");
}

// ---- connections of actors ---------------------------------------------------------------------------------------------------------

// Frames that arrive: their number, and those that wait for an answer of the same size. Others are copied where a collective needs them.
struct Frames final : ConnectionHandler {
  void on_frame(Frame frame) override {
    ++count;
    if (!answers) std::memcpy(memory.data(), frame.payload.data(), std::min(memory.size(), frame.payload.size()));
    if (answers) connection->send(std::move(frame), Flush::kNow);
  }
  void on_closed(Error why) override {
    if (may_close) return;
    fmt::print(stderr, "{}\n", why.to_string());
    std::exit(1);
  }
  std::unique_ptr<Connection> connection;
  std::uint64_t count = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(kMessage);
  bool answers = false;
  bool may_close = false;  // rank 0 closes after its last frame
};

void Bench::net() {
  constexpr std::size_t kMost = 4 * kMessage;
  constexpr int kTrips = 2000;
  const std::uint64_t frames = (static_cast<std::uint64_t>(options_.number("raw-mib", 256)) << 20) / kMessage;
  const auto random = make_real_random();
  if (rank_ == 0) folder_.write("token", Token::random(*random).hex());
  const Token token = Token::parse(folder_.read("token")).value();
  SocketNetwork network(loop_, *clock_, *random, token, {});
  Frames handler;
  const auto until = [this](auto&& done) {
    while (!done()) loop_.run_one(std::chrono::seconds(10), Loop::Idle::kSpin);
  };
  std::unique_ptr<Listener> listener;
  if (rank_ == 0) {
    listener = network.listen(Endpoint::tcp("127.0.0.1", 0), [&](auto connection) { handler.connection = std::move(connection); }).value();
    folder_.write("endpoint", listener->endpoint().to_string());
  } else {
    network.connect(parse_endpoint(folder_.read("endpoint")).value(), Role::kClient, std::chrono::seconds(10),
                    [&](auto connection) { handler.connection = std::move(connection).value(); });
  }
  until([&] { return handler.connection != nullptr; });
  handler.connection->start(handler);
  const auto send = [&](std::size_t bytes) {
    handler.connection->send({.method = 1, .body = {}, .payload = Bytes(bytes), .fds = {}}, Flush::kNow);
  };
  std::vector<double> rates, trips;
  for (int i = 0; i <= options_.number("reps", 5); ++i) {
    handler.answers = rank_ == 0;
    const std::uint64_t before = handler.count;
    auto begin = clock_->now();
    for (std::uint64_t k = 1; k <= kTrips; ++k) {
      if (rank_ != 0) send(8);
      until([&] { return handler.count - before >= k; });
    }
    trips.push_back(seconds(clock_->now() - begin) / kTrips * 1e6);
    handler.answers = false;
    begin = clock_->now();
    for (std::uint64_t k = 0; rank_ != 0 && k < frames; ++k) {
      until([&] { return handler.connection->queued_bytes() < kMost; });
      send(kMessage);
    }
    if (rank_ == 0) {
      until([&] { return handler.count - before >= kTrips + frames; });
      send(8);
    } else {
      handler.may_close = i == options_.number("reps", 5);
      until([&] { return handler.count - before >= kTrips + 1; });  // rank 0 has all
    }
    rates.push_back(static_cast<double>(frames * kMessage) / seconds(clock_->now() - begin) / 1e9);
  }
  rates.erase(rates.begin());
  trips.erase(trips.begin());
  print("one_way", rates, "GB/s each way");
  print("round_trip.8B", trips, "us");
}

int Bench::run() {
  if (layer_ == "raw" || layer_ == "net") {
    layer_ == "raw" ? raw() : net();
    return 0;
  }
  CommunicatorRequest request;
  request.rank = rank_;
  request.world_size = world_;
  request.name = "bench";
  auto& messages = request.messages.emplace();
  messages.open = [this] { return open(); };
  messages.chunk_bytes = static_cast<std::size_t>(options_.number("chunk", static_cast<int>(messages.chunk_bytes)));
  auto made = make_communicator(std::move(request), clock_);
  if (!made) {
    fmt::print(stderr, "{}\n", made.error().to_string());
    return 1;
  }
  Communicator& c = **made;
  if (options_.number("trips", 1) != 0) {
    round_trips(c);
    one_way(c);
  }
  bool right = true;
  std::istringstream sizes(options_.text("mib", "8,64,256"));
  for (std::string mib; std::getline(sizes, mib, ',') && mib != "0";) right &= collectives(c, std::stoul(mib));
  finish(c.barrier({}));
  return right ? 0 : 1;
}

}  // namespace
}  // namespace shoal::runtime

int main(int argc, char** argv) {
  shoal::runtime::Options options;
  for (int i = 1; i + 1 < argc; i += 2) options.given[std::string(argv[i]).substr(2)] = argv[i + 1];
  return shoal::runtime::Bench(options).run();
}
