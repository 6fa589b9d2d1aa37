// SPDX-License-Identifier: Apache-2.0
// Objects planted on /dev/shm for tests of the host verbs, and processes that hold some of them. Names carry this
// process's number, so that tests beside each other do not meet; all goes with the Plot.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tools/host/scan.hpp"

namespace shmb::test {

pid_t dead_pid();  // the number of a process that has just ended, and so of none that lives

class Plot {
 public:
  Plot();
  ~Plot();
  Plot(const Plot&) = delete;
  Plot& operator=(const Plot&) = delete;

  // A file of `pages` pages that names itself in its first bytes. "NAME" on /dev/shm; gives its path.
  std::string file(const std::string& name, int pages = 1);
  std::string own(const std::string& name) const;  // a name that no other test uses
  // A process that does `hold` and then waits until the Plot goes or end() is called.
  pid_t holder(const std::function<void()>& hold);
  void end(pid_t holder);
  static bool is_whole(int fd, const std::string& path);  // its first bytes are those that file() wrote

 private:
  std::string mark_;
  std::vector<std::string> files_;
  std::vector<pid_t> holders_;
};

// Indices of the objects with these paths.
std::vector<std::size_t> find_all(const host::Inventory& inventory, const std::vector<std::string>& paths);
const host::Object* find(const host::Inventory& inventory, const std::string& path);

}  // namespace shmb::test
