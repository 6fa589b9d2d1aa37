// SPDX-License-Identifier: Apache-2.0
// The two outputs of the bench: a table for people, a JSON document for programs.
#pragma once

#include <string>

#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

// Where and when: figures without it cannot be compared.
struct Conditions {
  std::string cpu, kernel, date, build;
  unsigned cores = 0;
  double load_before = 0;  // 1-minute load average when the run began: noise
};
Conditions conditions();

void print_heading(const Conditions& where, bool quick);
void print_record(const Record& record);
void print_summary(const Bench& bench);
void write_json(const Bench& bench, const Conditions& where, const std::string& path);

}  // namespace shmb::bench
