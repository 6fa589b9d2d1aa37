// SPDX-License-Identifier: Apache-2.0
// The common part of the tests of ranks: options that find the helper program, and a witness: a pipe whose write end
// everything that the ranks are and start has inherited, so that its end of file says that nothing of them is left.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "spawn/face/spawn.hpp"
#include "spawn/ranks/tree.hpp"

namespace shmb::test {

using shmbroker::StartMethod;
inline constexpr StartMethod kMethods[] = {StartMethod::spawn, StartMethod::fork, StartMethod::forkserver};

inline const char* name_of(StartMethod method) {
  return method == StartMethod::spawn ? "spawn" : method == StartMethod::fork ? "fork" : "forkserver";
}

inline shmbroker::SpawnOptions ranks_of(StartMethod method, int nprocs, bool join = true) {
  ::setenv("SHMBROKER_SPAWNER", SHMB_TEST_SPAWNER, 1);
  shmbroker::SpawnOptions options;
  options.start_method = method;
  options.nprocs = nprocs;
  options.join = join;
  options.no_group = true;
  options.program = SHMB_TEST_RANKS;
  options.command = {"ranks"};
  options.start_timeout = std::chrono::seconds(60);
  return options;
}

class Witness {
 public:
  Witness() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read_ = Fd::adopt(ends[0]);
    write_ = Fd::adopt(ends[1]);
    (void)::fcntl(ends[1], F_SETFD, 0);
  }
  int inherited() const { return write_.get(); }
  std::string ready_variable() const { return "SHMB_TEST_READY=" + std::to_string(write_.get()); }
  // So many ranks have said that they are where they should be.
  bool wait_ready(int count) {
    for (char byte; count > 0; --count)
      if (!readable() || ::read(read_.get(), &byte, 1) != 1) return false;
    return true;
  }
  void let_go() { write_.reset(); }
  // All others are gone. Their remaining messages are ignored.
  bool all_gone() {
    let_go();
    for (char byte; readable();)
      if (::read(read_.get(), &byte, 1) == 0) return true;
    return false;
  }

 private:
  bool readable() const {
    pollfd wait{read_.get(), POLLIN, 0};
    return ::poll(&wait, 1, 60'000) == 1;
  }
  Fd read_, write_;
};

inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline pid_t only_child(pid_t parent) {
  auto below = spawn::children(parent, {});
  return below && !below->empty() ? below->front().pid : -1;
}

}  // namespace shmb::test
