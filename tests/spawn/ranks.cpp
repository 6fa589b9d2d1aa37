// SPDX-License-Identifier: Apache-2.0
// The program that the tests' ranks are executed from. The argument says what else it
// does: "late" never reaches spawn_child, "never" ends before, "recursive" spawns before, "command" is no function.
#include <unistd.h>

#include <cstring>

#include "spawn/face/spawn.hpp"

void preload_once();

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "late") == 0)
    for (;;) ::pause();
  if (argc > 1 && std::strcmp(argv[1], "never") == 0) return 0;
  if (argc > 1 && std::strcmp(argv[1], "recursive") == 0) {
    shmbroker::SpawnOptions options;
    options.no_group = true;
    auto started = shmbroker::try_start_processes("nothing", options);
    return !started && std::strstr(started.error().what(), "has not called spawn_child") != nullptr ? 42 : 43;
  }
  if (argc > 1 && std::strcmp(argv[1], "command") == 0) {
    if (shmbroker::spawn_child(argc, argv)) return 98;
    shmbroker::ranks::add("sum", shmbroker::ranks::rank() + 1);
    shmbroker::ranks::barrier();
    return shmbroker::ranks::add("sum", 0) == 6 ? 0 : 97;
  }
  if (auto rc = shmbroker::spawn_child(argc, argv, preload_once)) return *rc;
  return 99;  // it was started as no rank
}
