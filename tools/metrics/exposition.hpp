// SPDX-License-Identifier: Apache-2.0
// Text in the OpenMetrics format, version 1.0. A family of metrics is announced once, with type, unit and help, and all
// its samples follow at once. The unit is the end of the family's name. A counter's samples end in _total. Units are
// base units: bytes and seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shmb::tools {

class Exposition {
 public:
  enum class Kind { gauge, counter, info };
  using Labels = std::vector<std::pair<std::string_view, std::string>>;
  static constexpr const char* kContentType = "application/openmetrics-text; version=1.0.0; charset=utf-8";

  // Samples that follow belong to this family. `name` has neither the prefix shmbroker_ nor the suffix of its kind. An
  // empty unit: a number of objects, or none.
  void family(std::string_view name, Kind kind, std::string_view unit, std::string_view help);
  void sample(const Labels& labels, std::string_view value);
  void sample(std::string_view value) { sample({}, value); }
  std::string finish();  // with the line that ends an exposition; once

 private:
  std::string text_, name_, suffix_;
};

std::string metric_number(std::uint64_t value);
std::string metric_limit(std::uint64_t value);  // all ones is no limit: +Inf
std::string metric_seconds(std::int64_t nanoseconds);

}  // namespace shmb::tools
