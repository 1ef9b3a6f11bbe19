// What went wrong, as a value: a code that says what the caller should do, a message, a hint, and where it happened.
//
// One owning pointer, so that Result<void> is a word. Move-only in spirit, copyable for broadcasts (a death is told to
// many callers).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Nine codes, the same in C++, on the wire and in Python, each named by what the caller should do.
enum class Code : std::uint16_t {
  kCancelled,          // the caller asked for it
  kUnavailable,        // somebody is gone: reconnect or give up
  kDeadlineExceeded,   // it took too long: retry or wait longer
  kResourceExhausted,  // too much at once, or the cluster is too small: back off
  kInvalidArgument,    // the request is wrong: fix it
  kNotFound,           // there is no such thing
  kDataLoss,           // bytes are wrong or gone
  kUnimplemented,      // not here, not yet
  kInternal,           // a bug of ours
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
  // A short name for errors that callers tell apart within a code ("ActorDied", "TokenRefused"); empty for most.
  const std::string& reason() const { return detail_->reason; }
  const std::string& message() const { return detail_->message; }
  const std::string& hint() const { return detail_->hint; }
  // Where it passed, innermost first: "actor Counter(3f..)", "rank 1", "step 12", "node unshard(block.3)".
  const std::vector<std::string>& context() const { return detail_->context; }

  Error&& with_reason(std::string reason) &&;
  Error&& with_hint(std::string hint) &&;
  // Appends one frame on the way up. At most kMaxContext frames are kept; the innermost ones win, as the first cause
  // matters most.
  Error&& in(std::string frame) &&;

  // "error[Unavailable/ActorDied]: message" and, on lines of their own, "  in: frames" and "  hint: ...".
  std::string to_string() const;

  static constexpr std::size_t kMaxContext = 16;

 private:
  struct Detail {
    Code code;
    std::string reason;
    std::string message;
    std::string hint;
    std::vector<std::string> context;
  };
  std::unique_ptr<Detail> detail_;
};

// One factory per code, so that call sites read as what they mean.
inline Error cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Error unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Error deadline_exceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Error resource_exhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Error invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Error not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Error data_loss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
inline Error unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Error internal(std::string m) { return {Code::kInternal, std::move(m)}; }

// The one place where errno becomes an Error: ENOENT is NotFound, EADDRINUSE is ResourceExhausted, and so on.
Error from_errno(int error, std::string_view what);

}  // namespace shoal
