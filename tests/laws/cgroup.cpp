// SPDX-License-Identifier: Apache-2.0
// Memory cgroups of either version, made and removed by a test that may.
#include "tests/laws/cgroup.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace laws {
namespace {

bool write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

std::string own_path(const std::string& controller) {  // cgroups(7): "4:memory:/path", "0::/path"
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

CgroupForTest::CgroupForTest(const std::string& name, unsigned long long limit) {
  const std::string leaf = "/shmbroker-" + name + "-" + std::to_string(::getpid());
  const bool first = is_there("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  const std::string mount = first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
  if (!first && !is_there(mount + "/cgroup.controllers")) {
    why_not_ = "no memory cgroups are mounted";
    return;
  }
  // In a container our path may be one that only the host sees; then the mount's top is ours.
  std::string parent = mount + own_path(first ? "memory" : "");
  if (!is_there(parent + "/cgroup.procs")) parent = mount;
  path_ = parent + leaf;
  if (::mkdir(path_.c_str(), 0755) != 0) {
    why_not_ = "no cgroup can be made in " + parent + ": " + std::strerror(errno);
    path_.clear();
    return;
  }
  usage_file_ = path_ + (first ? "/memory.usage_in_bytes" : "/memory.current");
  if (!write_text(path_ + (first ? "/memory.limit_in_bytes" : "/memory.max"), std::to_string(limit)))
    why_not_ = "the limit of " + path_ + " cannot be set";
}

CgroupForTest::~CgroupForTest() {
  // Its processes have ended; the kernel may still be busy with them.
  for (int attempt = 0; !path_.empty() && ::rmdir(path_.c_str()) != 0 && errno == EBUSY && attempt < 1000; ++attempt)
    ::usleep(1000);
}

bool CgroupForTest::enter() const { return write_text(path_ + "/cgroup.procs", "0"); }

unsigned long long CgroupForTest::usage() const {
  unsigned long long bytes = 0;
  std::ifstream(usage_file_) >> bytes;
  return bytes;
}

}  // namespace laws
