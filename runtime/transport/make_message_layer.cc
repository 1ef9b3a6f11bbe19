#include "runtime/transport/make_message_layer.h"

#include <fmt/format.h>

#include "runtime/transport/ucx/ucx_layer.h"
#include "runtime/transport/ucx/ucx_library.h"

namespace shoal::runtime {

Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network) {
  if (!network.kind.empty() && network.kind != "ucx") {
    return fail(invalid_argument(fmt::format("there is no transport '{}' between hosts", network.kind)).with_hint("ucx"));
  }
  // A rank without the library reports that, so that no rank waits for it.
  const auto library = UcxLibrary::load();
  SHOAL_TRY(const auto reasons, network.exchange(library ? std::string() : library.error().message()));
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (!reasons[r].empty()) {
      return fail(unavailable(fmt::format("rank {} cannot use UCX: {}", r, reasons[r]))
                      .with_reason("NoUcx")
                      .with_hint("install UCX on every host (Debian: libucx0)"));
    }
  }
  UcxOptions options;
  options.rank = network.rank;
  options.world_size = network.world_size;
  options.exchange = network.exchange;
  options.interface = network.interface;
  return make_ucx_layer(options);
}

}  // namespace shoal::runtime
