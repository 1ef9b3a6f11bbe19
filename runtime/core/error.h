// An error as a value: a code, a reason, a message, a hint for the user, and the context in which it arose. The code implies what the
// caller may do.
//
// Error owns one pointer, so Result<void> is small. It is moved as a rule, and copied where many get the same error, as the callers of an
// actor that died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Nine codes, the same in C++, on the wire and in Python.
enum class Code : std::uint16_t {
  kCancelled,          // at the caller's request
  kUnavailable,        // a process is gone: reconnect or give up
  kDeadlineExceeded,   // timeout: retry or wait longer
  kResourceExhausted,  // too many at once, or too small a cluster: back off
  kInvalidArgument,    // a wrong request: fix it
  kNotFound,           // no such entity
  kDataLoss,           // wrong or lost bytes
  kUnimplemented,      // unsupported here
  kInternal,           // a bug in Shoal
};
inline constexpr std::uint16_t kNumCodes = 9;

const char* code_name(Code code);  // "Unavailable", ...

class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message);
  Error(const Error& other);
  Error& operator=(const Error& other);
  Error(Error&&) noexcept = default;
  Error& operator=(Error&&) noexcept = default;
  ~Error() = default;

  Code code() const { return detail_->code; }
  // A short name that distinguishes errors of the same code ("ActorDied", "TokenRefused"); empty for most.
  const std::string& reason() const { return detail_->reason; }
  const std::string& message() const { return detail_->message; }
  const std::string& hint() const { return detail_->hint; }
  // The reason, and the message, of the error that caused this one; empty without a cause. cause_message() is the end of message().
  const std::string& cause_reason() const { return detail_->cause_reason; }
  std::string_view cause_message() const { return std::string_view(message()).substr(detail_->cause_at); }
  // The levels through which the error came, innermost first: "actor Counter(3f..)", "rank 1", "step 12", "node unshard(block.3)".
  const std::vector<std::string>& context() const { return detail_->context; }

  Error&& with_reason(std::string reason) &&;
  Error&& with_hint(std::string hint) &&;
  // States what caused this error: appends the message of `cause` to this one's, and stores its reason as cause_reason().
  Error&& because(const Error& cause) &&;
  // Adds one level to the context, unless it has kMaxContext levels: those near the cause matter most, so they are kept.
  Error&& in(std::string frame) &&;

  // "error[Unavailable/ActorDied]: message", then a line " in: " with the context and a line " hint: ", if there are any. It is for people:
  // control characters are escaped (printable.h).
  std::string to_string() const;

  static constexpr std::size_t kMaxContext = 16;

 private:
  struct Detail {
    Code code;
    std::string reason;
    std::string message;
    std::string hint;
    std::vector<std::string> context;
    std::string cause_reason;
    std::size_t cause_at;  // where the cause's message begins; the end of `message` without a cause
  };
  std::unique_ptr<Detail> detail_;
};

// One factory per code.
inline Error cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Error unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Error deadline_exceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Error resource_exhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Error invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Error not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Error data_loss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
inline Error unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Error internal(std::string m) { return {Code::kInternal, std::move(m)}; }

// Converts errno to an Error, everywhere in Shoal: ENOENT is NotFound, EADDRINUSE is ResourceExhausted, and so on.
Error from_errno(int error, std::string_view what);

}  // namespace shoal
