// SPDX-License-Identifier: Apache-2.0
// See samples.hpp.
#include "tools/benchmarks/kit/samples.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>

namespace shmb::bench {

double Samples::percentile(double part) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  rank = std::clamp<std::size_t>(rank, 1, sorted.size()) - 1;
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(rank));
  return sorted[rank];
}

Pair alternate(int repetitions, const std::function<double()>& ours, const std::function<double()>& floor) {
  Pair pair;
  for (int i = 0; i < repetitions; ++i) {
    pair.ours.add(ours());
    pair.floor.add(floor());
  }
  return pair;
}

double now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

}  // namespace shmb::bench
