// SPDX-License-Identifier: Apache-2.0
// The type of a figure, and the list of all families. To add figures: write families/NAME.cpp with one function
// `void run_NAME(Bench&)` that calls `bench.record(...)` per figure, and add one line to registry.cpp.
// Guarantee: no figure without its floor or peer from the same run of the program.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/benchmarks/kit/samples.hpp"

namespace shmb::bench {

// The goal in section 12 of the design.
struct Target {
  enum class Kind { none, ratio_at_most, ratio_at_least, value_at_most } kind = Kind::none;
  double bound = 0;
};
inline Target ratio_at_most(double bound) { return {Target::Kind::ratio_at_most, bound}; }
inline Target ratio_at_least(double bound) { return {Target::Kind::ratio_at_least, bound}; }
inline Target value_at_most(double bound) { return {Target::Kind::value_at_most, bound}; }

struct Record {
  std::string name;  // "family.what.size"
  std::string unit;
  double value = 0;
  double floor = 0;
  Target target;
  std::size_t n = 0;
  double least = 0, greatest = 0;       // of the value over the repetitions
  std::map<std::string, double> peers;  // same unit unless the key names another
  std::string engine;                   // of the broker, where one served

  double ratio() const { return floor != 0 ? value / floor : 0; }
  // Of a time: what is added to the floor's, in the figure's unit. A ratio hides it where the floor itself is slow.
  std::optional<double> adds() const;
  bool met() const;
};

// A record from both sides' repetitions.
Record make_record(std::string name, std::string unit, const Pair& pair, Target target = {});

struct Settings {
  bool quick = false;  // every figure once, with tiny counts: a smoke test, no measurement
  std::string broker;  // path of shmbrokerd
  std::string self;    // path of this program
  std::string engine = "auto";
};

class Bench {
 public:
  explicit Bench(Settings settings) : settings_(std::move(settings)) {}
  const Settings& settings() const { return settings_; }
  int times(int full, int quick = 1) const { return settings_.quick ? quick : full; }
  void record(Record record);  // prints its line of the table at once
  const std::vector<Record>& records() const { return records_; }

 private:
  Settings settings_;
  std::vector<Record> records_;
};

struct Family {
  std::string_view name;
  std::string_view about;
  void (*run)(Bench&);
};
std::span<const Family> families();

}  // namespace shmb::bench
