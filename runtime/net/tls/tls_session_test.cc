// Two sessions at the ends of a pair of sockets.
#include <sys/socket.h>

#include <ctime>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/core/fd.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {
namespace {

// Both ends write with one key after another, while the other end reads.
TEST(TlsSessionTest, ChangesItsKeyAfterManyRecords) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  const Fd a(fds[0]), b(fds[1]);
  constexpr std::int64_t kDay = 24 * 3600;
  const auto authority = make_authority("test", valid_from(std::time(nullptr), kDay)).value();
  const auto own = make_certificate(authority, "127.0.0.1", valid_from(std::time(nullptr), kDay)).value();
  const auto tls = Tls::make(Fingerprint::from_certificate(authority.certificate).value(), own).value();
  TlsSession calls(tls, a.get(), TlsSession::Side::kCalls);
  TlsSession listens(tls, b.get(), TlsSession::Side::kListens);
  for (bool done = false; !done;) {
    done = calls.handshake().value() == TlsSession::Step::kComplete;
    done &= listens.handshake().value() == TlsSession::Step::kComplete;
  }
  constexpr std::uint64_t kRecords = 4;
  for (auto* session : {&calls, &listens}) session->set_records_of_key(kRecords);
  for (int i = 0; i < 100; ++i) {
    for (const auto& [from, to] : {std::pair(&calls, &listens), std::pair(&listens, &calls)}) {
      const std::vector<std::byte> data(20000, static_cast<std::byte>(i));
      std::vector<std::byte> got(data.size());
      std::size_t written = 0, read = 0;
      while (read < got.size()) {
        if (written < data.size()) written += from->write(std::span(data).subspan(written)).value().bytes;
        read += to->read(std::span(got).subspan(read)).value().bytes;
      }
      ASSERT_EQ(got, data);
    }
  }
  EXPECT_GE(calls.num_key_updates(), 100 / kRecords);
  EXPECT_GE(listens.num_key_updates(), 100 / kRecords);
}

}  // namespace
}  // namespace shoal::runtime
