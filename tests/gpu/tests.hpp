// SPDX-License-Identifier: Apache-2.0
// Every test by name, with the longest time it may take and what it asks. Each runs in a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmb::facts {

struct Settings {
  int pin_wait_s = 30;  // T3: how long nothing but the holder's descriptors keeps the GPU
  bool quick = false;   // fewer cycles, less memory
  int wait_ms = 5000;   // T1, T27: how long a dead producer is watched; the fake has nothing that comes late
};
extern Settings settings;

// A test takes these on the fake driver, in place of gigabytes and seconds.
inline std::size_t large(std::size_t bytes) { return settings.quick ? bytes / 256 : bytes; }
inline std::uint64_t lasting(std::uint64_t ns) { return settings.quick ? ns / 8 : ns; }

// The facts of the machine; not a test, but every figure needs it.
void machine();

// lifetime.cpp: whose death or close ends the memory
void t1_producer_killed();
void t2_killed_under_a_kernel();
void t3_device_node();
void t6_keeper_outlives_share();
void t8_no_context_allocator();
void t15_consumer_killed_in_kernel();
// own_mapping.cpp, context.cpp: what a call on a region does to, and needs of, its own process
void t29_own_mapping();
void t30_no_context();
void t31_context_event();
// identity.cpp: what the descriptor is and who may use it
void t4_descriptor();
void t5_other_uid();
void t9_visible_devices();
void t10_junk_descriptors();
void t11_size_lie();
// faults.cpp: what goes wrong, and how far it spreads
void t7_read_only();
void t14_fork();
void t16_out_of_memory();
void t17_producer_fault();
void t18_fresh_memory();
// scale.cpp: many of everything
void t12_cycles();
void t13_many();
// order.cpp: timeline words and events
void t27_timeline();
void t27_event();
void p7_latency();
// pinned.cpp
void t28_pinned_memfd();
void p5_register();
// figures.cpp
void p1_import();
void p2_create();
void p6_bandwidth();
void p8_context();

struct Test {
  const char* name;
  const char* question;
  int limit_s;
  void (*body)();
};

}  // namespace shmb::facts
