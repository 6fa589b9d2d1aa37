// SPDX-License-Identifier: Apache-2.0
// The program that the scenarios' processes are executed from.
#include "spawn/face/spawn.hpp"

int main(int argc, char** argv) {
  if (auto rc = shmbroker::spawn_child(argc, argv)) return *rc;
  return 99;  // it was started as no rank
}
