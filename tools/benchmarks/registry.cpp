// SPDX-License-Identifier: Apache-2.0
// Every family of figures, in the order they run. A new family is one file and one line here.
#include "tools/benchmarks/figure.hpp"

namespace shmb::bench {

void run_round_trip(Bench&);
void run_requests(Bench&);
void run_fresh(Bench&);
void run_memory(Bench&);
void run_storm(Bench&);
void run_reclaim(Bench&);

std::span<const Family> families() {
  static constexpr Family all[] = {
      {"round_trip", "create and attach, against a bare exchange with the same memory calls", run_round_trip},
      {"requests", "requests per second and waiting times, against a bare server on the same engine", run_requests},
      {"fresh", "fresh memory created, filled, read by another process", run_fresh},
      {"memory", "what the broker itself takes", run_memory},
      {"storm", "1,000 clients with 10 regions each killed at once", run_storm},
      {"reclaim", "one killed client's 64 MiB until they are free", run_reclaim},
  };
  return all;
}

}  // namespace shmb::bench
