// SPDX-License-Identifier: Apache-2.0
// The program behind tools/bench: runs the families named (or all), prints the table, writes the JSON.
#include <fmt/format.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>

#include "spawn/face/shmbroker_spawn.h"
#include "tools/benchmarks/floors/bare_restart.hpp"
#include "tools/benchmarks/kit/process.hpp"
#include "tools/benchmarks/kit/report.hpp"

using namespace shmb::bench;

int main(int argc, char** argv) {
  // The floor of the broker's idle memory: a process with the same libraries that waits (families/memory.cpp).
  if (argc == 2 && strcmp(argv[1], "--wait-for-memory-floor") == 0) {
    if (write(STDERR_FILENO, "x", 1) != 1) return 1;
    for (;;) pause();
  }
  // Ranks of families/spawn.cpp, and the same program as its floor starts it.
  if (argc == 2 && strcmp(argv[1], "--end-at-once") == 0) return 0;
  if (shmb_rank_enter(nullptr, nullptr, nullptr) == SHMB_OK) {
    const int status = shmb_rank_finish(nullptr, 0, nullptr);
    if (argc == 2) _exit(status);  // of the fork server: as its floor ends, which runs no destructors
    return status;
  }
  if (argc == 6 && strcmp(argv[1], kBareKeeper) == 0)
    return bare_keeper(argv[2], std::stoi(argv[3]), std::stoi(argv[4]), std::stoi(argv[5]));
  CLI::App app{"Measures shmbroker against floors and peers in the same run."};
  std::vector<std::string> names;
  std::string json;
  bool list = false;
  Settings settings;
  settings.self = std::filesystem::read_symlink("/proc/self/exe");
  settings.broker = SHMB_BENCH_BROKER;
  app.add_option("NAME", names, "families to run; none: all (--list names them)");
  app.add_option("--json", json, "write the records to this file");
  app.add_option("--broker", settings.broker, "the broker to measure");
  app.add_option("--engine", settings.engine, "the broker's engine where a family does not run both")
      ->check(CLI::IsMember({"auto", "epoll", "io_uring"}));
  app.add_flag("--quick", settings.quick, "each figure once with tiny counts: a smoke test, not a measurement");
  app.add_flag("--list", list, "name the families");
  CLI11_PARSE(app, argc, argv);

  auto known = families();
  if (list) {
    for (const Family& family : known) fmt::print("{:<12} {}\n", family.name, family.about);
    return 0;
  }
  for (const std::string& name : names)
    if (std::ranges::none_of(known, [&](const Family& family) { return family.name == name; })) {
      fmt::print(stderr, "bench: no family '{}' (--list names them)\n", name);
      return 2;
    }
  Bench bench(settings);
  Conditions where = conditions();
  print_heading(where, settings.quick);
  for (const Family& family : known)
    if (names.empty() || std::ranges::find(names, family.name) != names.end()) family.run(bench);
  print_summary(bench);
  if (!json.empty()) write_json(bench, where, json);
}
