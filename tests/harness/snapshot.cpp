// SPDX-License-Identifier: Apache-2.0
// Read from /proc with plain calls: the harness must see the truth also while faults are injected into base.
#include "tests/harness/snapshot.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/harness/proc.hpp"

namespace harness {

namespace {

std::string link_target(const std::string& path) {
  char target[4096];
  const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
  if (size < 0) return {};
  std::string text(target, static_cast<std::size_t>(size));
  // Removing the file behind an open descriptor is no change of the descriptor.
  constexpr std::string_view kDeleted = " (deleted)";
  if (text.ends_with(kDeleted)) text.resize(text.size() - kDeleted.size());
  return text;
}

// "(name) S 1 ..." of /proc/PID/stat: the state and the parent.
struct Stat {
  std::string name;
  char state = '?';
  int parent = 0;
};

Stat stat_of(const std::string& path) {
  const std::string text = contents(path);
  const std::size_t open = text.find('('), close = text.rfind(')');
  Stat stat;
  if (open == std::string::npos || close == std::string::npos) return stat;
  stat.name = text.substr(open, close - open + 1);
  std::istringstream(text.substr(close + 1)) >> stat.state >> stat.parent;
  return stat;
}

std::set<std::string> children_now() {
  std::set<std::string> found;
  const int self = ::getpid();
  for (const int pid : numbers_in("/proc")) {
    const Stat stat = stat_of("/proc/" + std::to_string(pid) + "/stat");
    if (stat.parent == self) found.insert(std::to_string(pid) + " " + stat.name + " " + stat.state);
  }
  return found;
}

std::multiset<std::string> shared_mappings() {
  std::multiset<std::string> found;
  std::istringstream maps(contents("/proc/self/maps"));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, rights, offset, device, inode, path;
    fields >> range >> rights >> offset >> device >> inode >> path;
    const bool memory_file = path.starts_with("/memfd:") || path.starts_with("/dev/shm/");
    if (rights.size() != 4 || (rights[3] != 's' && !memory_file)) continue;
    const std::size_t dash = range.find('-');
    const auto bytes = std::stoull(range.substr(dash + 1), nullptr, 16) - std::stoull(range, nullptr, 16);
    found.insert((path.empty() ? "anonymous" : path) + " " + rights + " " + std::to_string(bytes) + " bytes");
  }
  return found;
}

template <class Set>
void compare(const Set& before, const Set& after, const char* left, const char* lost, std::vector<std::string>& out) {
  std::vector<std::string> more, less;
  std::ranges::set_difference(after, before, std::back_inserter(more));
  std::ranges::set_difference(before, after, std::back_inserter(less));
  for (const auto& what : more) out.push_back(left + what);
  if (lost != nullptr)
    for (const auto& what : less) out.push_back(lost + what);
}

}  // namespace

Snapshot take_snapshot() {
  Snapshot snapshot;
  for (const int fd : numbers_in("/proc/self/fd")) {
    const std::string target = link_target("/proc/self/fd/" + std::to_string(fd));
    if (!target.empty()) snapshot.descriptors.insert(std::to_string(fd) + " -> " + target);
  }
  snapshot.mappings = shared_mappings();
  snapshot.children = children_now();
  for (const int tid : numbers_in("/proc/self/task")) {
    const Stat stat = stat_of("/proc/self/task/" + std::to_string(tid) + "/stat");
    if (!stat.name.empty()) snapshot.threads.insert(std::to_string(tid) + " " + stat.name);
  }
  return snapshot;
}

std::vector<std::string> differences(const Snapshot& before, const Snapshot& after) {
  std::vector<std::string> out;
  compare(before.descriptors, after.descriptors, "left open: descriptor ", "closed what it did not open: descriptor ",
          out);
  compare(before.mappings, after.mappings, "left mapped: ", "unmapped what it did not map: ", out);
  compare(before.children, after.children, "left a child: ", nullptr, out);
  compare(before.threads, after.threads, "left a thread: ", nullptr, out);
  return out;
}

}  // namespace harness
