// SPDX-License-Identifier: Apache-2.0
// A test's report to the runner: facts seen and one verdict, over a pipe that every process of the test inherits. One
// line is one write below PIPE_BUF, so lines of several processes never mix, and a killed process loses nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shmb::facts {

inline constexpr int kReportFd = 3;  // fixed number: survives the closing of everything else in an actor

[[gnu::format(printf, 2, 3)]] void fact(const char* key, const char* format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void skip(const char* format, ...);
// A wrong fact that does not stop the test: it goes on to see more, and still counts as failed.
[[gnu::format(printf, 1, 2)]] void wrong(const char* format, ...);

double now_ms();
void sleep_ms(int ms);

// Samples of one figure. Text: "median 12.3 us, p99 20.1 us, n 30".
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  double median() const { return at(0.5); }
  double at(double share) const;
  std::string text(const char* unit) const;

 private:
  std::vector<double> values_;
};

}  // namespace shmb::facts
