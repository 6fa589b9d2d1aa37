// SPDX-License-Identifier: Apache-2.0
// Asks a real GPU the driver facts that GPU regions stand on, without our broker: plain processes, sockets, libcuda at
// run time. One question a process: it answers in lines on stdout (report.hpp), and `run` holds its time limit, ends
// what it leaves and writes the results. The process itself never loads the driver, only the actors that it forks do.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {

Settings settings;

namespace {

// The order in which they are asked is the runner's.
constexpr Test kTests[] = {
    {"machine", "what this machine is", 60, machine},
    {"T4", "what the descriptor looks like to a process without the driver", 30, t4_descriptor},
    {"T1", "memory of a killed producer can be imported at once and later", 60, t1_producer_killed},
    {"T29", "a mapping is made read-only in place while a kernel of its owner reads it", 40, t29_own_mapping},
    {"T30", "import, map, allow, unmap and release without a current context", 40, t30_no_context},
    {"T7", "a write through a read-only mapping faults its own process only", 40, t7_read_only},
    {"T31", "how far a context has come, and what asking does to a capture", 40, t31_context_event},
    {"T6", "the keeper works after every share is closed", 30, t6_keeper_outlives_share},
    {"T11", "a claimed size other than the real one", 30, t11_size_lie},
    {"T10", "descriptors that are something else", 30, t10_junk_descriptors},
    {"T9", "CUDA_VISIBLE_DEVICES in the importer", 40, t9_visible_devices},
    {"T5", "another uid imports", 40, t5_other_uid},
    {"T8", "a process without a context can allocate for others", 40, t8_no_context_allocator},
    {"T2", "producer killed while a consumer's kernel reads; memory returned after the last close", 60,
     t2_killed_under_a_kernel},
    {"T27", "timeline words order streams of two processes; a killed producer's waiter wakes", 60, t27_timeline},
    {"T3", "what keeps the memory when no other process uses the GPU", 120, t3_device_node},
    {"T12", "cycles leave no descriptors, no memory and no card memory behind", 120, t12_cycles},
    {"T14", "fork after init", 30, t14_fork},
    {"T15", "consumer killed inside a kernel", 60, t15_consumer_killed_in_kernel},
    {"T16", "a full card", 60, t16_out_of_memory},
    {"T17", "producer's context dies of an illegal address", 40, t17_producer_fault},
    {"T18", "whether fresh memory shows old bytes", 40, t18_fresh_memory},
    {"T27e", "streams of two processes meet by interprocess events", 60, t27_event},
    {"T28", "pinned memfd: copies, read-only registration, seals, holes", 60, t28_pinned_memfd},
    {"T13", "many consumers and many regions", 120, t13_many},
    {"P1", "import and map against legacy IPC, by size", 90, p1_import},
    {"P2", "create, export, map, by size", 60, p2_create},
    {"P5", "registration of host memory by page size", 60, p5_register},
    {"P6", "copy bandwidth through an imported mapping", 40, p6_bandwidth},
    {"P7", "timeline against event against host round trip", 40, p7_latency},
    {"P8", "what a consumer's context costs", 30, p8_context},
};

std::string why_not(bool fake) {
  if (const std::string problem = load_driver(); !problem.empty()) return problem;
  if (driver_is_fake() != fake) return fake ? "this is not the fake driver" : "this is the fake driver: say --fake";
  if (const Code code = cu.init(0); code != kSuccess) return "cuInit gives " + code_text(code);
  int count = 0;
  if (cu.device_count(&count) != kSuccess || count == 0) return "no device";
  return {};
}

// Exit status: 0 with a driver of the wanted kind and a device, else 77 and a sentence.
int probe(bool fake) {
  const std::string problem = why_not(fake);
  std::puts(problem.empty() ? "a driver and a device" : problem.c_str());
  return problem.empty() ? 0 : 77;
}

int list() {
  for (const Test& test : kTests) std::printf("%s\t%d\t%s\n", test.name, test.limit_s, test.question);
  return 0;
}

int ask(const char* name) {
  for (const Test& test : kTests) {
    if (std::strcmp(test.name, name) != 0) continue;
    signal(SIGPIPE, SIG_IGN);
    if (dup2(STDOUT_FILENO, kReportFd) != kReportFd) return 3;
    test.body();
    return 0;
  }
  std::fprintf(stderr, "gpu-facts: no question is called %s\n", name);
  return 2;
}

int usage() {
  std::fputs(
      "usage: gpu-facts --list\n"
      "       gpu-facts --probe [--fake]\n"
      "       gpu-facts [--quick] [--pin-wait SECONDS] [--wait MILLISECONDS] TEST\n",
      stderr);
  return 2;
}

int run(int count, char** words) {
  const char* name = nullptr;
  bool fake = false, probing = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--list") return list();
    if (word == "--probe") {
      probing = true;
    } else if (word == "--fake") {
      fake = true;
    } else if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--pin-wait" && i + 1 < count) {
      settings.pin_wait_s = std::atoi(words[++i]);
    } else if (word == "--wait" && i + 1 < count) {
      settings.wait_ms = std::atoi(words[++i]);
    } else if (name == nullptr && word[0] != '-') {
      name = words[i];
    } else {
      return usage();
    }
  }
  if (probing) return probe(fake);
  return name != nullptr ? ask(name) : usage();
}

}  // namespace
}  // namespace shmb::facts

int main(int count, char** words) { return shmb::facts::run(count, words); }
