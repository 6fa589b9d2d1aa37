// SPDX-License-Identifier: Apache-2.0
// Runs the instances: those of the algorithm must hold, its broken variants must be found to fail, and every step of
// the models must be taken by an instance that holds. docs/pool-model.md says how to read the output.
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <ctime>

#include "tests/model/instance.hpp"

namespace shmb::model {
namespace {

struct Options {
  bool all = false, trace = false, list = false, steps = false;
  std::vector<std::string> wanted;  // parts of names, or variants
};

constexpr const char* kUsage =
    "usage: test_model [--all] [--trace] [--list] [--steps] [NAME...]\n"
    "  NAME     a variant (V7) or a part of an instance's name; none: every instance\n"
    "  --all    the large instances too: a quarter of an hour, and up to 5 GiB\n"
    "  --trace  print the shortest way to what is wrong\n"
    "  --list   name the instances; --steps: name the steps of the models\n";

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--all") options.all = true;
    else if (word == "--trace") options.trace = true;
    else if (word == "--list") options.list = true;
    else if (word == "--steps") options.steps = true;
    else if (word.starts_with("-")) return false;
    else options.wanted.push_back(word);
  }
  return true;
}

bool is_wanted(const Options& options, const Instance& one) {
  if (options.wanted.empty()) return options.all || !one.large;
  for (const std::string& word : options.wanted)
    if (one.variant == word || (one.variant.empty() && one.name.find(word) != std::string::npos)) return true;
  return false;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

long peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// True when the instance did what it must.
bool run(const Instance& one, const Options& options, StepSet& taken) {
  const double start = cpu_seconds();
  Limits limits;
  limits.liveness = one.liveness;
  const Report report = one.run(limits);
  const bool holds = report.complete && report.wrong.empty();
  const bool right = one.variant.empty() ? holds : !holds && report.wrong.find("limit") == std::string::npos;
  const std::string result = !holds ? report.wrong : report.live ? "holds, live" : "holds";
  std::printf(
      "%-4s %-5s %-78s %11llu states %12llu edges  %5.1f s  %s\n", right ? "ok" : "FAIL", one.variant.c_str(),
      one.name.c_str(), static_cast<unsigned long long>(report.states), static_cast<unsigned long long>(report.edges),
      cpu_seconds() - start,
      (one.variant.empty() || holds ? result : "found in " + std::to_string(report.trace.size()) + " steps: " + result)
          .c_str());
  if (options.trace || !right)
    for (const std::string& line : report.trace) std::printf("       %s\n", line.c_str());
  std::fflush(stdout);
  if (one.variant.empty()) taken |= report.taken;
  return right;
}

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (options.steps) {
#define SHMB_MODEL_PRINT(name) std::puts("client " #name);
    SHMB_MODEL_CLIENT_STEPS(SHMB_MODEL_PRINT)
#undef SHMB_MODEL_PRINT
#define SHMB_MODEL_PRINT(name) std::puts("broker " #name);
    SHMB_MODEL_BROKER_STEPS(SHMB_MODEL_PRINT)
#undef SHMB_MODEL_PRINT
    return 0;
  }
  std::vector<Instance> all;
  add_spsc_lanes(all);
  add_mpmc_lanes(all);
  add_broadcasts(all);
  add_wakes(all);
  StepSet taken;
  int ran = 0, failed = 0;
  for (const Instance& one : all) {
    if (!is_wanted(options, one)) continue;
    if (options.list) {
      std::printf("%-5s %s%s\n", one.variant.c_str(), one.name.c_str(), one.large ? " (--all)" : "");
      continue;
    }
    ++ran;
    if (!run(one, options, taken)) ++failed;
  }
  if (options.list) return 0;
  if (options.wanted.empty())
    for (std::size_t step = 0; step < taken.size(); ++step)
      if (!taken[step]) {
        std::printf("FAIL  no instance that holds takes the step %s\n", kStepNames[step]);
        ++failed;
      }
  std::printf("%d instances, %d failed, %.1f s of CPU, at most %ld MiB\n", ran, failed, cpu_seconds(), peak_mib());
  return ran == 0 || failed != 0;
}

}  // namespace
}  // namespace shmb::model

int main(int argc, char** argv) { return shmb::model::main(argc, argv); }
