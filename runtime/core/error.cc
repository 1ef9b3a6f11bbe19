#include "runtime/core/error.h"

#include <cerrno>
#include <cstring>

#include "runtime/core/printable.h"

namespace shoal {

const char* code_name(Code code) {
  switch (code) {
    case Code::kCancelled:
      return "Cancelled";
    case Code::kUnavailable:
      return "Unavailable";
    case Code::kDeadlineExceeded:
      return "DeadlineExceeded";
    case Code::kResourceExhausted:
      return "ResourceExhausted";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kNotFound:
      return "NotFound";
    case Code::kDataLoss:
      return "DataLoss";
    case Code::kUnimplemented:
      return "Unimplemented";
    case Code::kInternal:
      return "Internal";
  }
  return "Internal";
}

Error::Error(Code code, std::string message) : detail_(std::make_unique<Detail>(Detail{code, {}, std::move(message), {}, {}, {}, 0})) {
  detail_->cause_at = detail_->message.size();
}

Error::Error(const Error& other) : detail_(std::make_unique<Detail>(*other.detail_)) {}

Error& Error::operator=(const Error& other) {
  if (this != &other) detail_ = std::make_unique<Detail>(*other.detail_);
  return *this;
}

Error&& Error::with_reason(std::string reason) && {
  detail_->reason = std::move(reason);
  return std::move(*this);
}

Error&& Error::with_hint(std::string hint) && {
  detail_->hint = std::move(hint);
  return std::move(*this);
}

Error&& Error::because(const Error& cause) && {
  detail_->cause_at = detail_->message.size();
  detail_->message += cause.message();
  detail_->cause_reason = cause.reason();
  return std::move(*this);
}

Error&& Error::in(std::string frame) && {
  if (detail_->context.size() < kMaxContext) detail_->context.push_back(std::move(frame));
  return std::move(*this);
}

std::string Error::to_string() const {
  std::string out = "error[";
  out += code_name(code());
  if (!reason().empty()) out += "/" + reason();
  out += "]: " + message();
  if (!context().empty()) {
    out += "\n  in: ";
    for (std::size_t i = 0; i < context().size(); ++i) out += (i ? ", " : "") + context()[i];
  }
  if (!hint().empty()) out += "\n  hint: " + hint();
  return printable_lines(out);
}

Error from_errno(int error, std::string_view what) {
  std::string message(what);
  message += ": ";
  message += std::strerror(error);
  switch (error) {
    case ENOENT:
      return not_found(std::move(message));
    case EADDRINUSE:
      return resource_exhausted(std::move(message)).with_reason("AddressInUse");
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
      return resource_exhausted(std::move(message));
    case EACCES:
    case EPERM:
    case EINVAL:
    case ENAMETOOLONG:
    case ENOEXEC:
    case ENOTDIR:
      return invalid_argument(std::move(message));
    case ECONNREFUSED:
      return unavailable(std::move(message)).with_reason("Refused");
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return unavailable(std::move(message));
    case ETIMEDOUT:
      return deadline_exceeded(std::move(message));
    case ECANCELED:
      return cancelled(std::move(message));
    default:
      return internal(std::move(message));
  }
}

}  // namespace shoal
