// The numbers of the control protocol's methods, for code that needs no more. message.h explains how headers declare methods.
#pragma once

#include <cstdint>

namespace shoal::actors {

enum class Method : std::uint16_t {
#include "actors/protocol/wire/methods.inc"
};

template <class Enum>
constexpr std::uint16_t number(Enum method) {
  return static_cast<std::uint16_t>(method);
}

}  // namespace shoal::actors
