// Conversions between native texts and Python's str, in place of nanobind's. A native text may hold any bytes, because other processes send
// them: what is no UTF-8 becomes U+FFFD. So no text of a peer raises in the binding that passes it on.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <string_view>

namespace nanobind::detail {

inline std::optional<std::string_view> utf8_of(handle source) noexcept {
  if (!PyUnicode_Check(source.ptr())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(source.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return std::string_view(text, static_cast<std::size_t>(size));
}

inline handle str_of(std::string_view text) noexcept {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

template <>
struct type_caster<std::string> {
  NB_TYPE_CASTER(std::string, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    const auto text = utf8_of(source);
    if (text) value = *text;
    return text.has_value();
  }
  static handle from_cpp(const std::string& text, rv_policy, cleanup_list*) noexcept { return str_of(text); }
};

template <>
struct type_caster<std::string_view> {
  NB_TYPE_CASTER(std::string_view, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    const auto text = utf8_of(source);
    if (text) value = *text;
    return text.has_value();
  }
  static handle from_cpp(std::string_view text, rv_policy, cleanup_list*) noexcept { return str_of(text); }
};

}  // namespace nanobind::detail
