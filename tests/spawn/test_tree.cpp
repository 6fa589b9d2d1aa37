// SPDX-License-Identifier: Apache-2.0
// Reading /proc and signalling what was found there, against real processes.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "spawn/ranks/tree.hpp"

using namespace shmb;

namespace {

const std::string kTail =
    " S 17 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654321 2576384 237 18446744073709551615 1 1 0";

struct Sleeper {
  pid_t pid = ::fork();
  Sleeper() {
    if (pid == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Sleeper() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

}  // namespace

TEST_CASE("a process that names itself to look like other fields is read right") {
  for (const std::string name : {"sleep", "a) S 1 1", ") R 2 (", "two\nlines", "", "((("}) {
    auto read = spawn::parse_stat("4711 (" + name + ")" + kTail);
    REQUIRE(read.has_value());
    CHECK(read->pid == 4711);
    CHECK(read->parent == 17);
    CHECK(read->name == name);
    CHECK(read->start_time == 987654321);
  }
}

TEST_CASE("a line that is no stat line is refused") {
  for (const std::string line : {"", "1", "1 (x", "1 x)", "1 )x(", "1 (x)", "x (x) S 1", "1 (x) S", "1 (x) S 1 2 3"})
    CHECK(spawn::parse_stat(line).error().value == EINVAL);
}

TEST_CASE("descendants are found through generations, and what is skipped takes its own with it") {
  Sleeper child;
  auto all = spawn::descendants(::getpid(), {});
  REQUIRE(all.has_value());
  CHECK(all->size() == 1);
  const pid_t skipped[] = {child.pid};
  CHECK(spawn::descendants(::getpid(), skipped)->empty());
  CHECK(spawn::children(::getpid(), skipped)->empty());
  CHECK(spawn::children(::getpid(), {})->front().pid == child.pid);
}

TEST_CASE("a signal never reaches another process that was given the same pid") {
  Sleeper child;
  auto found = spawn::process(child.pid);
  REQUIRE(found.has_value());
  spawn::Process earlier = *found;
  earlier.start_time -= 1;
  CHECK(spawn::signal_process(earlier, SIGKILL).error().value == ESRCH);
  CHECK(::kill(child.pid, 0) == 0);
  CHECK(::waitpid(child.pid, nullptr, WNOHANG) == 0);
  CHECK(spawn::signal_process(*found, SIGKILL).has_value());
  int status = 0;
  CHECK(::waitpid(child.pid, &status, 0) == child.pid);
  CHECK(WTERMSIG(status) == SIGKILL);
  child.pid = ::fork();
  if (child.pid == 0) ::_exit(0);
}
