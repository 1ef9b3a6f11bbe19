// The build id of an ELF binary: its linker's hash of the contents (-Wl,--build-id), which differs between builds.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace shoal::actors::api {

// In hexadecimal; "" if the running program was linked without one. Read from memory, so that it is right even after the file was
// replaced.
std::string own_build_id();

// The build id in a segment's notes (ELF gABI, "Note Section"). nullopt if there is none, or the notes are invalid.
std::optional<std::string> build_id_in(std::span<const std::byte> notes);

}  // namespace shoal::actors::api
