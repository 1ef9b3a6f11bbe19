#include "scheduler/runs/statistics.h"

#include <algorithm>
#include <cmath>

namespace shoal::scheduler::runs {

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double noise(const std::vector<double>& values) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < values.size(); ++i) steps.push_back(std::abs(values[i] - values[i - 1]));
  return 1.4826 * median(std::move(steps)) / std::sqrt(2.0);
}

std::size_t change_point(const std::vector<double>& values, double before, double level) {
  const double middle = (before + level) / 2, reach = std::abs(level - before);
  const double sign = level >= before ? 1 : -1;
  double sum = 0, best = 0;
  std::size_t from = values.size();
  for (std::size_t i = values.size(); i-- > 0;) {
    sum += std::clamp(sign * (values[i] - middle), -reach, reach / 2);  // a single large value is no level
    if (sum < best) continue;
    best = sum;
    from = i;
  }
  return from;
}

double part_above(const std::vector<double>& values, std::size_t from, double least) {
  if (from >= values.size()) return 0;
  const auto count = std::count_if(values.begin() + static_cast<std::ptrdiff_t>(from), values.end(), [&](double v) { return v >= least; });
  return static_cast<double>(count) / static_cast<double>(values.size() - from);
}

std::vector<double> last(const std::vector<double>& values, std::size_t count) {
  return {values.end() - static_cast<std::ptrdiff_t>(std::min(count, values.size())), values.end()};
}

double slope(const std::vector<double>& x, const std::vector<double>& y) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t k = i + 1; k < x.size(); ++k)
      if (x[k] > x[i]) slopes.push_back((y[k] - y[i]) / (x[k] - x[i]));
  }
  return median(std::move(slopes));
}

}  // namespace shoal::scheduler::runs
