// SPDX-License-Identifier: Apache-2.0
// Numbers of one measurement and what is reported of them. A repetition's value is the median of its samples; a
// figure is the median of its repetitions, with the least and the greatest beside it: on a shared machine the mean
// tells about the neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace shmb::bench {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  void add(const Samples& more) { values_.insert(values_.end(), more.values_.begin(), more.values_.end()); }
  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }
  double percentile(double part) const;  // 0..1, nearest rank; 0 when empty
  double median() const { return percentile(0.5); }
  double least() const { return percentile(0); }
  double greatest() const { return percentile(1); }

 private:
  std::vector<double> values_;
};

// Both sides of a comparison, measured A B A B so that a slow second of the machine hits both.
struct Pair {
  Samples ours, floor;
};
Pair alternate(int repetitions, const std::function<double()>& ours, const std::function<double()>& floor);

double now_us();  // CLOCK_MONOTONIC

// Microseconds that `body` takes.
template <class Body>
double timed(Body&& body) {
  double from = now_us();
  body();
  return now_us() - from;
}

}  // namespace shmb::bench
