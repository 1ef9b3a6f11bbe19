#include "actors/protocol/cluster/resources.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shoal::actors {

namespace {

constexpr double kMaxAmount = 1e14;  // largest amount of a resource, as 100 TB in bytes

std::string amount_text(const std::string& name, std::int64_t units) {
  const double amount = static_cast<double>(units) / Resources::kUnit;
  if (name == "memory" && amount >= (1 << 20)) {
    return amount >= (1 << 30) ? fmt::format("{:.4g} GiB", amount / (1 << 30)) : fmt::format("{:.4g} MiB", amount / (1 << 20));
  }
  return fmt::format("{:g}", amount);
}

// The sum, or the nearest number in the range of the type, which sums over many nodes may exceed.
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? (a < 0 ? INT64_MIN : INT64_MAX) : out;
}

}  // namespace

Result<Resources> Resources::from_amounts(const std::map<std::string, double>& amounts) {
  Resources out;
  for (const auto& [name, amount] : amounts) {
    if (name.empty() || name.size() > 100) return fail(invalid_argument("a resource's name has 1 to 100 characters"));
    if (!std::isfinite(amount) || amount < 0 || amount > kMaxAmount) {
      return fail(invalid_argument(fmt::format("resource {}: {} is not an amount", name, amount)));
    }
    const double units = amount * kUnit;
    if (std::abs(units - std::round(units)) > 1e-6 * std::max(1.0, units)) {
      return fail(invalid_argument(fmt::format("resource {}: {} is finer than 1/{}", name, amount, kUnit)));
    }
    out.set_units(name, static_cast<std::int64_t>(std::llround(units)));
  }
  return out;
}

std::int64_t Resources::units(const std::string& name) const {
  const auto it = units_.find(name);
  return it == units_.end() ? 0 : it->second;
}

void Resources::set_units(const std::string& name, std::int64_t units) {
  if (units == 0) {
    units_.erase(name);
  } else {
    units_[name] = units;
  }
}

bool Resources::fits_in(const Resources& room) const {
  for (const auto& [name, units] : units_) {
    if (units > room.units(name)) return false;
  }
  return true;
}

Resources& Resources::operator+=(const Resources& other) {
  for (const auto& [name, units] : other.units_) set_units(name, plus(this->units(name), units));
  return *this;
}

Resources& Resources::operator-=(const Resources& other) {
  for (const auto& [name, units] : other.units_) set_units(name, plus(this->units(name), -units));
  return *this;
}

std::string Resources::to_string() const {
  std::string out;
  for (const auto& [name, units] : units_) out += (out.empty() ? "" : ", ") + name + " " + amount_text(name, units);
  return out.empty() ? "nothing" : out;
}

std::string Resources::missing_in(const Resources& room) const {
  std::string out;
  for (const auto& [name, units] : units_) {
    if (units <= room.units(name)) continue;
    out += (out.empty() ? "" : ", ") + name + " " + amount_text(name, units) + " (has " +
           amount_text(name, std::max<std::int64_t>(0, room.units(name))) + ")";
  }
  return out;
}

}  // namespace shoal::actors
