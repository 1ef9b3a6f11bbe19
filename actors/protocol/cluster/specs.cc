#include "actors/protocol/cluster/specs.h"

namespace shoal::actors {

const char* to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::kPack:
      return "PACK";
    case Strategy::kSpread:
      return "SPREAD";
    case Strategy::kStrictPack:
      return "STRICT_PACK";
    case Strategy::kStrictSpread:
      return "STRICT_SPREAD";
  }
  return "?";
}

}  // namespace shoal::actors
