// Robust statistics of short series. All functions take copies where they sort.
#pragma once

#include <cstddef>
#include <vector>

namespace shoal::scheduler::runs {

double median(std::vector<double> values);  // 0 without values
double quantile(std::vector<double> values, double part);
// The standard deviation of a series' noise, from differences of neighbours. So a change of level hardly counts: one difference has it.
double noise(const std::vector<double>& values);
// The position from which the values belong to `level`, that of the series' end, and no longer to `before`. Page's cumulative sum finds it,
// from the end backwards; the middle between both levels separates them.
std::size_t change_point(const std::vector<double>& values, double before, double level);
// The part of values in [from, end) that are at least `least`.
double part_above(const std::vector<double>& values, std::size_t from, double least);
std::vector<double> last(const std::vector<double>& values, std::size_t count);
// Median of the differences per unit of x between all pairs (Theil and Sen). 0 for fewer than two points.
double slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace shoal::scheduler::runs
