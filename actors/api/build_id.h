// The build id of an ELF binary: its linker's hash of all it contains (-Wl,--build-id). Two builds of one program differ in it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace shoal::actors::api {

// In hexadecimal; "" when the running program was linked without one. Read from memory, so that it is the running program's even
// after its file was replaced.
std::string own_build_id();

// Of the notes of one segment (ELF gABI, "Note Section"). Nothing when there is none, or when they make no sense.
std::optional<std::string> build_id_in(std::span<const std::byte> notes);

}  // namespace shoal::actors::api
