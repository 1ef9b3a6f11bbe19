#include "runtime/net/socket/greeting.h"

#include <sys/socket.h>
#include <unistd.h>

#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <span>
#include <string>
#include <utility>

#include "runtime/net/socket/address.h"

namespace shoal::runtime {

Error from_asio(std::error_code error, std::string_view what) {
  if (error == asio::error::eof) return unavailable(std::string(what) + ": the other side closed the connection").with_reason("HungUp");
  return from_errno(error.value(), what);
}

namespace {

// Identity of the peer of a unix socket, as the kernel reports it.
Result<PeerIdentity> local_peer(int fd) {
  PeerIdentity identity;
  if (bound_address(fd).family() != AF_UNIX) return identity;
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return fail(from_errno(errno, "SO_PEERCRED"));
  if (credentials.uid != geteuid()) {
    return fail(
        invalid_argument("a process of another user called (uid " + std::to_string(credentials.uid) + ")").with_reason("TokenRefused"));
  }
  identity.local = true;
  identity.pid = credentials.pid;
  return identity;
}

Task<void> wait_for(Line& line, TlsSession::Step step) {
  const auto what = step == TlsSession::Step::kWritable ? Socket::wait_write : Socket::wait_read;
  const auto [error] = co_await line.socket.async_wait(what, kTuple);
  if (error) co_return fail(from_asio(error, "hello"));
  if (!line.socket.is_open()) co_return fail(cancelled("the hello was cancelled"));
  co_return Result<void>();
}

Task<void> begin_tls(Line& line, std::shared_ptr<const Tls> tls, TlsSession::Side side, std::function<void()> stepped) {
  line.tls.emplace(std::move(tls), line.socket.native_handle(), side);
  for (bool begun = false;;) {
    SHOAL_CO_TRY(const auto step, line.tls->handshake());
    if (step == TlsSession::Step::kComplete || begun != line.tls->begun()) stepped();
    if (step == TlsSession::Step::kComplete) co_return Result<void>();
    begun = line.tls->begun();
    SHOAL_CO_OK(co_await wait_for(line, step));
  }
}

Task<void> read_message(Line& line, HelloMessage& message) {
  if (!line.tls) {
    const auto [error, n] = co_await asio::async_read(line.socket, asio::buffer(message), kTuple);
    if (error) co_return fail(from_asio(error, "hello"));
    co_return Result<void>();
  }
  for (std::span<std::byte> left = std::as_writable_bytes(std::span(message)); !left.empty();) {
    SHOAL_CO_TRY(const auto moved, line.tls->read(left));
    if (moved.ended) co_return fail(from_asio(asio::error::eof, "hello"));
    if (moved.step != TlsSession::Step::kComplete) SHOAL_CO_OK(co_await wait_for(line, moved.step));
    left = left.subspan(moved.bytes);
  }
  co_return Result<void>();
}

Task<void> write_message(Line& line, HelloMessage message) {
  if (!line.tls) {
    const auto [error, n] = co_await asio::async_write(line.socket, asio::buffer(message), kTuple);
    if (error) co_return fail(from_asio(error, "hello"));
    co_return Result<void>();
  }
  for (std::span<const std::byte> left = std::as_bytes(std::span(message)); !left.empty();) {
    SHOAL_CO_TRY(const auto moved, line.tls->write(left));
    if (moved.step != TlsSession::Step::kComplete) SHOAL_CO_OK(co_await wait_for(line, moved.step));
    left = left.subspan(moved.bytes);
  }
  co_return Result<void>();
}

}  // namespace

Task<PeerIdentity> greet_caller(Line& line, std::shared_ptr<const Tls> tls, const Token& token, VersionRange versions, Random& random,
                                Admit admit, std::function<void()> stepped) {
  if (tls) SHOAL_CO_OK(co_await begin_tls(line, std::move(tls), TlsSession::Side::kListens, stepped));
  SHOAL_CO_TRY(PeerIdentity identity, local_peer(line.socket.native_handle()));
  HelloListener hello(token, versions, random, line.binding());
  SHOAL_CO_OK(co_await write_message(line, hello.challenge()));
  HelloMessage answer;
  SHOAL_CO_OK(co_await read_message(line, answer));
  const auto verdict = hello.judge(answer);
  if (verdict.accepted) {
    const auto admitted = admit(identity.local ? "process " + std::to_string(identity.pid) : peer_address(line.socket.native_handle()));
    if (!admitted) {
      // A caller of wire version 1 would report that this is not Shoal. It gets no verdict, and may try again.
      if (verdict.version >= kRefusesForRoom) SHOAL_CO_OK(co_await write_message(line, hello.no_room()));
      co_return fail(admitted.error());
    }
  }
  SHOAL_CO_OK(co_await write_message(line, verdict.message));
  SHOAL_CO_OK(verdict.accepted);
  identity.role = verdict.role;
  identity.version = verdict.version;
  co_return identity;
}

Task<PeerIdentity> greet_listener(Line& line, std::shared_ptr<const Tls> tls, const Token& token, VersionRange versions, Role role,
                                  Random& random) {
  const std::function<void()> no_limit = [] {};
  if (tls) SHOAL_CO_OK(co_await begin_tls(line, std::move(tls), TlsSession::Side::kCalls, no_limit));
  SHOAL_CO_TRY(PeerIdentity identity, local_peer(line.socket.native_handle()));
  HelloCaller hello(token, versions, role, random, line.binding());
  HelloMessage message;
  SHOAL_CO_OK(co_await read_message(line, message));
  SHOAL_CO_TRY(const HelloMessage answer, hello.answer(message));
  SHOAL_CO_OK(co_await write_message(line, answer));
  SHOAL_CO_OK(co_await read_message(line, message));
  SHOAL_CO_TRY(identity.version, hello.conclude(message));
  co_return identity;
}

}  // namespace shoal::runtime
