// SPDX-License-Identifier: Apache-2.0
// Every family of figures, in the order they run. A new family is one file and one line here.
#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

void run_round_trip(Bench&);
void run_requests(Bench&);
void run_fresh(Bench&);
void run_memory(Bench&);
void run_storm(Bench&);
void run_reclaim(Bench&);
void run_restart(Bench&);
void run_hop(Bench&);
void run_latency(Bench&);
void run_shared_core(Bench&);
void run_regions_resent(Bench&);
void run_messages(Bench&);
void run_hand_over(Bench&);
void run_slots(Bench&);
void run_exhausted_pool(Bench&);
void run_waiting(Bench&);
void run_spawn(Bench&);
void run_remote(Bench&);
void run_remote_outstanding(Bench&);
void run_gpu(Bench&);
void run_floods(Bench&);
void run_tool(Bench&);

std::span<const Family> families() {
  static constexpr Family all[] = {
      // First: its floor forks the bench itself, whose memory grows with what ran before.
      {"spawn", "ranks started and joined, against bare posix_spawn and fork; a killed rank until all are gone",
       run_spawn},
      {"round_trip", "create and attach, against a bare exchange with the same memory calls", run_round_trip},
      {"requests", "requests per second and waiting times, against a bare server on the same engine", run_requests},
      {"fresh", "fresh memory created, filled, read by another process", run_fresh},
      {"memory", "what the broker itself takes", run_memory},
      {"storm", "1,000 clients with 10 regions each killed at once", run_storm},
      {"reclaim", "one killed client's 64 MiB until they are free", run_reclaim},
      {"restart", "SIGKILL of a broker with keepers to the next served request, and what keepers and broker take",
       run_restart},
      {"hop", "one message from process to process, against a bare cache line and a bare futex", run_hop},
      {"latency", "percentiles of a hop, pinned and not, idle and beside computing processes", run_latency},
      {"shared_core", "one message between two processes on one core, against a bare futex there", run_shared_core},
      {"regions_resent", "one region in message after message, against the same messages without it",
       run_regions_resent},
      {"messages", "messages per second through queues, against a bare ring", run_messages},
      {"hand_over", "large messages filled and handed over, against filling one buffer", run_hand_over},
      {"slots", "a slot taken and given back, against two locked instructions", run_slots},
      {"exhausted_pool", "an acquire where no slot, or one, is free, in a large pool against a small one",
       run_exhausted_pool},
      {"waiting", "processor time of a reader that waits, against a bare futex", run_waiting},
      {"remote", "calls and references between two workers, against a stream socket with the same bytes", run_remote},
      {"remote_outstanding", "calls per second with some outstanding, against a stream socket with as many under way",
       run_remote_outstanding},
      {"gpu", "GPU memory published and opened at the broker, against a bare exchange of as many descriptors", run_gpu},
      {"floods", "a create beside floods of one user's, against the same create beside processes that compute",
       run_floods},
      {"tool",
       "leaks, doctor and list --all on a host of 2,000 processes, against bare reads of /proc, lsof, lsfd, ipcs",
       run_tool},
  };
  return all;
}

}  // namespace shmb::bench
