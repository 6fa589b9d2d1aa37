// SPDX-License-Identifier: Apache-2.0
// Facts about the first GPU from the management library. Read-only. Each reading is a short-lived process of its own:
// the library holds the GPU's device node open, and a test that asks what happens after the last close must not.
#pragma once

#include <string>

namespace shmb::facts {

struct Card {
  bool known = false;
  unsigned long long used = 0, total = 0;  // bytes
  int persistence = -1, mig = -1;
  char driver[80] = {};
  int process_count = 0;
  struct {
    unsigned pid;
    unsigned long long used;
  } processes[128] = {};

  double used_mib() const { return static_cast<double>(used) / (1 << 20); }
  // "absent", "present, 512 MiB"
  std::string process_text(int pid) const;
};

Card read_card();
// Waits until `used` is within 2 MiB of `bytes`, or that long; the last reading.
Card wait_used(unsigned long long bytes, int ms);

}  // namespace shmb::facts
