// SPDX-License-Identifier: Apache-2.0
// See machine.hpp.
#include "tests/e2e/machine.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/harness/child.hpp"

namespace e2e {
namespace {

// After "(name) " of /proc/PID/stat: state and parent.
bool state_of(pid_t pid, char& state, pid_t& parent) {
  const std::string text = contents("/proc/" + std::to_string(pid) + "/stat");
  const auto end = text.rfind(')');
  if (end == text.npos) return false;
  std::istringstream rest(text.substr(end + 1));
  return static_cast<bool>(rest >> state >> parent);
}

}  // namespace

Resident resident(const void* address) {
  Resident found;
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(address) << '-';
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    const bool head = !line.empty() && (line[0] < 'A' || line[0] > 'Z');
    if (head) inside = line.starts_with(start.str());
    if (!inside) continue;
    std::istringstream fields(line);
    std::string key;
    std::uint64_t kib = 0;
    fields >> key >> kib;
    if (key == "Rss:") found.rss = kib * 1024;
    if (key == "ShmemPmdMapped:") found.huge = kib * 1024;
  }
  return found;
}

std::uint64_t shmem_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    std::uint64_t kib = 0;
    if (key == "Shmem:" && file >> kib) return kib * 1024;
  }
  return 0;
}

void limit_descriptors(std::size_t most) {
  const rlimit limit{most, most};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::abort();
}

bool enter_mount_namespace() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool mount_tmpfs(const std::string& at, const std::string& options) {
  return ::mount("tmpfs", at.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

bool can_mount() {
  static const bool can =
      harness::Child::run([] { return enter_mount_namespace() && mount_tmpfs("/mnt", "size=4k") ? 0 : 1; }).wait() == 0;
  return can;
}

pid_t parent_of(pid_t pid) {
  char state = 0;
  pid_t parent = -1;
  return state_of(pid, state, parent) ? parent : -1;
}

bool process_lives(pid_t pid) {
  char state = 0;
  pid_t parent = -1;
  return state_of(pid, state, parent) && state != 'Z' && state != 'X';
}

std::vector<pid_t> all_processes() { return harness::numbers_in("/proc"); }

std::vector<pid_t> processes_with(const std::string& argument) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes())
    if (contents("/proc/" + std::to_string(pid) + "/cmdline").find(argument) != std::string::npos && process_lives(pid))
      found.push_back(pid);
  return found;
}

}  // namespace e2e
