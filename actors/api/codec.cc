#include "actors/api/codec.h"

#include <cstdint>

namespace shoal::actors::api {

using nlohmann::json;

namespace {

// Looks at the nesting and keeps nothing: from_cbor recurses as deep as its input says, so that is known first.
class DepthCheck {
 public:
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(json::number_integer_t) { return true; }
  bool number_unsigned(json::number_unsigned_t) { return true; }
  bool number_float(json::number_float_t, const json::string_t&) { return true; }
  bool string(json::string_t&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool key(json::string_t&) { return true; }
  bool start_object(std::size_t) { return ++depth_ <= kMaxDepth; }
  bool start_array(std::size_t) { return ++depth_ <= kMaxDepth; }
  bool end_object() { return depth_-- > 0; }
  bool end_array() { return depth_-- > 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

 private:
  int depth_ = 0;
};

}  // namespace

Result<Value> make_value(const json& head, Value::Pieces buffers) {
  std::vector<std::uint8_t> cbor;
  cbor.reserve(64);
  json::to_cbor(head, cbor);
  buffers.insert(buffers.begin(), std::as_bytes(std::span(cbor)));
  return Value::make(buffers);
}

Result<json> head_of(const Value& value, std::size_t num_items, std::size_t num_buffers) {
  const auto pieces = value.pieces();
  if (pieces.size() != 1 + num_buffers) return fail(invalid_argument("the values have another number of buffers"));
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(pieces[0].data());
  const auto* const end = begin + pieces[0].size();
  // Each level of nesting takes a byte at least.
  DepthCheck check;
  if (end - begin > kMaxDepth && !json::sax_parse(begin, end, &check, json::input_format_t::cbor))
    return fail(invalid_argument("the values are no CBOR"));
  json head = json::from_cbor(begin, end, true, false);
  if (!head.is_array() || head.size() != num_items) {
    return fail(invalid_argument("there are not " + std::to_string(num_items) + " values"));
  }
  return head;
}

}  // namespace shoal::actors::api
