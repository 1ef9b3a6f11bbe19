// Secrets in names, in the texts of variables and in settings. Pure.
#pragma once

#include <string>
#include <string_view>

namespace shoal::scheduler::cli {

// True if a word of the name of a variable or an option says that its value is a secret.
bool names_secret(std::string_view name);

// True if the text has an address with a user and a password, as in postgres://me:password@host.
bool has_password(std::string_view text);

// The text with "(secret)" for the value in each NAME=VALUE whose name says so, and "***" for the user and password of each address.
std::string without_secrets(std::string_view text);

}  // namespace shoal::scheduler::cli
