#include "actors/api/codec/decode.h"
#include "actors/api/codec/encode.h"

#include <fmt/format.h>

#include "runtime/wire/codec.h"

namespace shoal::actors::api {

namespace {

constexpr std::string_view kRaised = "shoal::Error";

}  // namespace

void refer(Value& value, std::span<const CborWriter* const> heads) {
  std::vector<ObjectKey> objects;
  auto holds = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (const CborWriter* head : heads) {
    if (head->refs() == nullptr) continue;
    objects.insert(objects.end(), head->refs()->objects.begin(), head->refs()->objects.end());
    holds->insert(holds->end(), head->refs()->holds.begin(), head->refs()->holds.end());
  }
  if (!objects.empty()) value.refer(std::move(objects), std::move(holds));
}

Result<Value> raised_value(const Error& error) {
  const Bytes bytes = runtime::encode_error(error);
  return Value::make({std::as_bytes(std::span(kRaised)), bytes.span()}, Value::Kind::kRaised);
}

Error raised_error(const Value& value) {
  const auto pieces = value.pieces();
  if (pieces.size() != 2 || std::string_view(reinterpret_cast<const char*>(pieces[0].data()), pieces[0].size()) != kRaised) {
    return unimplemented("the method raised an exception of another language");
  }
  return runtime::decode_error(Bytes::copy_of(pieces[1].data(), pieces[1].size()));
}

nlohmann::json json_of(std::span<const std::byte> item) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(item.data());
  return nlohmann::json::from_cbor(begin, begin + item.size());
}

void write_json(CborWriter& to, const nlohmann::json& value) {
  const auto cbor = nlohmann::json::to_cbor(value);
  to.raw(cbor.data(), cbor.size());
}

Error Decoder::why() const {
  if (how_.method.empty()) return invalid_argument(fmt::format("the result does not have its declared type: {}", reader_.why()));
  if (index_ == 0) return invalid_argument(fmt::format("the arguments of {}: {}", how_.method, reader_.why()));
  return invalid_argument(fmt::format("argument {} of {}: {}", index_, how_.method, reader_.why()));
}

}  // namespace shoal::actors::api
