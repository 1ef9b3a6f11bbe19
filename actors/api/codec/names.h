// Names and signatures of classes, methods and fields, at compile time: names come from __PRETTY_FUNCTION__.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace shoal::actors::api {

template <class... Types>
struct List {};

// True for a coroutine's return type: Task<T> (api/context/future.h).
template <class R>
inline constexpr bool kIsTask = false;

// ---- signatures of member pointers ----
template <class Pointer>
struct Signature;
template <class R, class C, class... P>
struct Signature<R (C::*)(P...)> {
  using Return = R;
  using Params = List<P...>;
};
template <class R, class C, class... P>
struct Signature<R (C::*)(P...) const> : Signature<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct Signature<R (C::*)(P...) noexcept> : Signature<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct Signature<R (C::*)(P...) const noexcept> : Signature<R (C::*)(P...)> {};

// ---- names ----
template <auto Pointer>
constexpr std::string_view pretty_pointer() {
  return __PRETTY_FUNCTION__;
}
template <class T>
constexpr std::string_view pretty_type() {
  return __PRETTY_FUNCTION__;
}

// The template argument in a __PRETTY_FUNCTION__: "&Counter::add", "{anonymous}::Counter".
constexpr std::string_view argument_in(std::string_view pretty) {
  pretty.remove_prefix(pretty.find("= ") + 2);
  return pretty.substr(0, std::min(pretty.find(';'), pretty.rfind(']')));
}

// The name after the last "::" outside of angle brackets.
constexpr std::string_view unqualified(std::string_view name) {
  std::size_t from = 0;
  int depth = 0;
  for (std::size_t i = 0; i + 1 < name.size(); ++i) {
    if (name.substr(i).starts_with("operator")) break;
    depth += (name[i] == '<') - (name[i] == '>');
    if (depth == 0 && name[i] == ':' && name[i + 1] == ':') from = i + 2;
  }
  return name.substr(from);
}

// The class's name with its namespaces, by which workers find it.
template <class T>
constexpr std::string_view full_class_name() {
  return argument_in(pretty_type<T>());
}
// The class's name without namespaces, for texts.
template <class T>
constexpr std::string_view class_name() {
  return unqualified(full_class_name<T>());
}

}  // namespace shoal::actors::api
