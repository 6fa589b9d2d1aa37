// SPDX-License-Identifier: Apache-2.0
// The program that the tests' ranks are executed from. With the argument "late" it never reaches spawn_child.
#include <unistd.h>

#include <cstring>

#include "spawn/spawn.hpp"

void preload_once();

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "late") == 0)
    for (;;) ::pause();
  if (argc > 1 && std::strcmp(argv[1], "never") == 0) return 0;
  if (auto rc = shmbroker::spawn_child(argc, argv, preload_once)) return *rc;
  return 99;  // it was started as no rank
}
