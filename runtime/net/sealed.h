// Encrypts short texts with the cluster's token, for channels that others can read or write.
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/net/hello.h"

namespace shoal::runtime {

// AES-256-GCM with a random nonce and the token as the key. `context` is authenticated, but not in the result.
std::string seal(const Token& token, std::string_view context, std::string_view text);
// Returns DataLoss unless seal() made `sealed` with this token and context.
Result<std::string> unseal(const Token& token, std::string_view context, std::string_view sealed);

}  // namespace shoal::runtime
