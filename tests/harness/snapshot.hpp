// SPDX-License-Identifier: Apache-2.0
// The resources of a process at one moment, in words, so that two moments can be compared.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace harness {

struct Snapshot {
  std::set<std::string> descriptors;    // "7 -> socket:[123]"
  std::multiset<std::string> mappings;  // shared mappings and memfds by their file: "/memfd:x rw-s 4096 bytes"
  std::set<std::string> children;       // "1234 (cat) Z"
  std::set<std::string> threads;        // "1235 (worker)"
};

Snapshot take_snapshot();

// One sentence per difference; empty where nothing was left or lost.
std::vector<std::string> differences(const Snapshot& before, const Snapshot& after);

}  // namespace harness
