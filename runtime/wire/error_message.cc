#include "runtime/wire/error_message.h"

#include <algorithm>

#include "runtime/core/utf8.h"
#include "runtime/wire/codec.h"

namespace shoal::runtime {

namespace {
// All texts together stay well below the limit of a frame's body.
constexpr std::size_t kMaxText = 64 << 10, kMaxFrameText = 4 << 10;

// A message may contain a process's output, which can be arbitrary bytes. A byte that is not UTF-8 becomes three. A text that was cut
// before stays as it is, so that a stored error is the same after each reading.
std::string clipped(const std::string& s, std::size_t limit = kMaxText) {
  constexpr std::string_view kCut = " [...]";
  std::string valid = valid_utf8(utf8_prefix(s, limit + kCut.size()));
  const bool was_cut = s.ends_with(kCut) && valid.size() == s.size();
  if (was_cut || (s.size() <= limit && valid.size() <= limit)) return valid;
  return std::string(utf8_prefix(valid, limit)).append(kCut);
}
}  // namespace

void fill_error(wire::ErrorMessage::Builder m, const Error& error) {
  m.setCode(static_cast<std::uint16_t>(error.code()));
  m.setReason(clipped(error.reason()));
  m.setMessage(clipped(error.message()));
  m.setHint(clipped(error.hint()));
  if (!error.cause_reason().empty()) m.setCauseReason(clipped(error.cause_reason()));
  if (const auto cause = error.cause_message(); !cause.empty()) {
    const std::size_t sent = m.getMessage().size(),
                      begin = clipped(error.message().substr(0, error.message().size() - cause.size())).size();
    m.setCauseBytes(static_cast<std::uint32_t>(sent - std::min(begin, sent)));
  }
  auto context = m.initContext(static_cast<unsigned>(error.context().size()));
  for (unsigned i = 0; i < context.size(); ++i) context.set(i, clipped(error.context()[i], kMaxFrameText));
}

Error read_error(wire::ErrorMessage::Reader m) {
  const auto code = m.getCode() < kNumCodes ? static_cast<Code>(m.getCode()) : Code::kInternal;
  const auto valid = [](const auto& t) { return valid_utf8(text(t)); };
  const std::string message = text(m.getMessage());
  const std::size_t cause_at = message.size() - std::min<std::size_t>(m.getCauseBytes(), message.size());
  const Error cause = Error(code, valid_utf8(message.substr(cause_at))).with_reason(valid(m.getCauseReason()));
  Error out =
      Error(code, valid_utf8(message.substr(0, cause_at))).because(cause).with_reason(valid(m.getReason())).with_hint(valid(m.getHint()));
  for (const auto frame : m.getContext()) {
    if (out.context().size() == Error::kMaxContext) break;
    out = std::move(out).in(valid(frame));
  }
  return out;
}

Bytes encode_error(const Error& error) {
  return write<wire::ErrorMessage>([&](wire::ErrorMessage::Builder m) { fill_error(m, error); });
}

Error decode_error(const Bytes& body) {
  auto error = read<wire::ErrorMessage>(body, read_error);
  return error ? *std::move(error) : internal("a received error cannot be read: " + error.error().message());
}

}  // namespace shoal::runtime
