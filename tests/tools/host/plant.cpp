// SPDX-License-Identifier: Apache-2.0
// See plant.hpp.
#include "tests/tools/host/plant.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace shmb::test {

pid_t dead_pid() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

Plot::Plot() {
  static int number = 0;
  mark_ = "shmbtest" + std::to_string(::getpid()) + "x" + std::to_string(++number) + "-";
}

Plot::~Plot() {
  while (!holders_.empty()) end(holders_.back());
  for (const std::string& path : files_) ::unlink(path.c_str());
}

std::string Plot::own(const std::string& name) const { return mark_ + name; }

std::string Plot::file(const std::string& name, int pages) {
  const std::string path = "/dev/shm/" + name;
  const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  std::string content(static_cast<std::size_t>(pages) * 4096, 'x');
  content.replace(0, path.size() + 1, path + "\n");
  REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  ::close(fd);
  files_.push_back(path);
  return path;
}

pid_t Plot::holder(const std::function<void()>& hold) {
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const pid_t parent = ::getpid(), child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    hold();
    (void)!::write(ready[1], "r", 1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  const bool is_ready = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  REQUIRE(is_ready);
  holders_.push_back(child);
  return child;
}

void Plot::end(pid_t holder) {
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  std::erase(holders_, holder);
}

bool Plot::is_whole(int fd, const std::string& path) {
  std::string start(path.size() + 1, '\0');
  return ::pread(fd, start.data(), start.size(), 0) == static_cast<ssize_t>(start.size()) && start == path + "\n";
}

std::vector<std::size_t> find_all(const host::Inventory& inventory, const std::vector<std::string>& paths) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < inventory.objects.size(); ++i)
    if (std::ranges::any_of(inventory.objects[i].names, [&](const std::string& name) {
          return std::ranges::find(paths, "/dev/shm/" + name) != paths.end();
        }))
      out.push_back(i);
  return out;
}

const host::Object* find(const host::Inventory& inventory, const std::string& path) {
  const auto found = find_all(inventory, {path});
  return found.empty() ? nullptr : &inventory.objects[found.front()];
}

}  // namespace shmb::test
