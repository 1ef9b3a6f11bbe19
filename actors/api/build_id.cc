#include "actors/api/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace shoal::actors::api {

namespace {

constexpr std::size_t kMaxIdBytes = 64;  // linkers make ids of 16 or 20 bytes

constexpr std::size_t padded(std::size_t n) { return (n + 3) / 4 * 4; }

}  // namespace

std::optional<std::string> build_id_in(std::span<const std::byte> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof header);
    notes = notes.subspan(sizeof header);
    const std::size_t name = padded(header.n_namesz), content = padded(header.n_descsz);
    if (name > notes.size() || content > notes.size() - name) return std::nullopt;
    const bool gnu = header.n_namesz == sizeof ELF_NOTE_GNU && std::memcmp(notes.data(), ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0;
    if (gnu && header.n_type == NT_GNU_BUILD_ID) {
      if (header.n_descsz == 0 || header.n_descsz > kMaxIdBytes) return std::nullopt;
      std::string out;
      for (const std::byte b : notes.subspan(name, header.n_descsz)) {
        constexpr char kDigits[] = "0123456789abcdef";
        out += kDigits[std::to_integer<unsigned>(b) >> 4];
        out += kDigits[std::to_integer<unsigned>(b) & 15];
      }
      return out;
    }
    notes = notes.subspan(name + content);
  }
  return std::nullopt;
}

std::string own_build_id() {
  std::string out;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const auto* notes = reinterpret_cast<const std::byte*>(info->dlpi_addr + segment.p_vaddr);
          if (const auto id = build_id_in({notes, segment.p_memsz})) {
            *static_cast<std::string*>(result) = *id;
            break;
          }
        }
        return 1;  // stops after the program, which comes first: its libraries have build ids of their own
      },
      &out);
  return out;
}

}  // namespace shoal::actors::api
