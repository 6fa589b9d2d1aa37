// SPDX-License-Identifier: Apache-2.0
// Plain write(2) to a fixed descriptor: works in every process of a test, and right up to its death.
#include "tests/gpu/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace shmb::facts {
namespace {

void write_line(char kind, const char* key, const char* format, va_list arguments) {
  char line[2000];
  const int head = std::snprintf(line, sizeof line, "%c%s\t", kind, key);
  const int body = std::vsnprintf(line + head, sizeof line - static_cast<std::size_t>(head) - 1, format, arguments);
  const std::size_t end = std::min(static_cast<std::size_t>(head + std::max(body, 0)), sizeof line - 2);
  std::replace(line, line + end, '\n', ' ');
  line[end] = '\n';
  if (write(kReportFd, line, end + 1) < 0) _exit(3);
}

}  // namespace

void fact(const char* key, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line('+', key, format, arguments);
  va_end(arguments);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line('!', "fail", format, arguments);
  va_end(arguments);
  _exit(1);
}

void wrong(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line('!', "fail", format, arguments);
  va_end(arguments);
}

void skip(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line('-', "skip", format, arguments);
  va_end(arguments);
  _exit(0);
}

double now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void sleep_ms(int ms) {
  timespec wait{ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&wait, nullptr);
}

double Samples::at(double share) const {
  if (values_.empty()) return std::nan("");
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::ceil(share * last - 1e-9))];
}

std::string Samples::text(const char* unit) const {
  char line[120];
  std::snprintf(line, sizeof line, "median %.1f %s, p99 %.1f %s, n %zu", median(), unit, at(0.99), unit,
                values_.size());
  return line;
}

}  // namespace shmb::facts
