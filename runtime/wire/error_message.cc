#include "runtime/wire/error_message.h"

#include "runtime/wire/codec.h"

namespace shoal::runtime {

namespace {
// All of them together are well within a frame's body.
constexpr std::size_t kMaxText = 64 << 10, kMaxFrameText = 4 << 10;

std::string clipped(const std::string& s, std::size_t limit = kMaxText) { return s.size() <= limit ? s : s.substr(0, limit) + " [...]"; }
}  // namespace

void fill_error(wire::ErrorMessage::Builder m, const Error& error) {
  m.setCode(static_cast<std::uint16_t>(error.code()));
  m.setReason(clipped(error.reason()));
  m.setMessage(clipped(error.message()));
  m.setHint(clipped(error.hint()));
  auto context = m.initContext(static_cast<unsigned>(error.context().size()));
  for (unsigned i = 0; i < context.size(); ++i) context.set(i, clipped(error.context()[i], kMaxFrameText));
}

Error read_error(wire::ErrorMessage::Reader m) {
  const auto code = m.getCode() < kNumCodes ? static_cast<Code>(m.getCode()) : Code::kInternal;
  Error out = Error(code, text(m.getMessage())).with_reason(text(m.getReason())).with_hint(text(m.getHint()));
  for (const auto frame : m.getContext()) {
    if (out.context().size() == Error::kMaxContext) break;
    out = std::move(out).in(text(frame));
  }
  return out;
}

Bytes encode_error(const Error& error) {
  return write<wire::ErrorMessage>([&](wire::ErrorMessage::Builder m) { fill_error(m, error); });
}

Error decode_error(const Bytes& body) {
  auto error = read<wire::ErrorMessage>(body, read_error);
  return error ? *std::move(error) : internal("an error arrived that cannot be read: " + error.error().message());
}

}  // namespace shoal::runtime
