// SPDX-License-Identifier: Apache-2.0
// The main job of shmbroker as a program, part by part; tools/quickstart runs them in order on real data. It uses the
// installed C++ header only. Exit: 0 as promised, 1 not, 2 usage, 4 refused.
//
//     g++ -std=c++20 main_job/*.cpp -o main_job/main_job -pthread $(pkg-config --cflags --libs shmbroker libcrypto)
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <shmbroker/shmbroker.hpp>
#include <vector>

#include "parts.hpp"
#include "worker.hpp"

namespace main_job {

void leave_daemon(const std::string& pid_file) {
  int ready[2];
  require(::pipe2(ready, O_CLOEXEC) == 0, "cannot make a pipe");
  if (::fork() != 0) {
    ::close(ready[1]);
    char byte = 0;
    require(::read(ready[0], &byte, 1) == 1, "the daemon did not start");
    return;  // the command ends, the daemon stays
  }
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  const auto session = shmbroker::Session::connect({.program = "daemon"});  // of the group that SHMBROKER_GROUP names
  const auto region = session.create(32U << 20, {.name = "held"});
  std::ofstream(pid_file) << ::getpid() << std::endl;
  require(::write(ready[1], "", 1) == 1, "the command is gone");
  for (;;) ::pause();
}

namespace {

int create(std::uint64_t mebi) {
  const auto session = shmbroker::Session::connect({.program = "greedy"});
  const auto region = session.try_create(mebi << 20, {.name = "large"});
  if (region) return 0;
  std::printf("%s\n", region.error().what());
  return region.error().status() == shmbroker::Status::limit ? 4 : 1;
}

int run(const std::vector<std::string>& words) {
  const std::string part = words.empty() ? "" : words[0];
  if (part == "checksum" && words.size() == 3) return checksum(words[1], words[2]), 0;
  if (part == "exchange" && words.size() == 1) return exchange(), 0;
  if (part == "read-only" && words.size() == 2) return read_only(words[1], std::nullopt), 0;
  if (part == "read-only" && words.size() == 3)
    return read_only(words[1], static_cast<std::uint32_t>(std::strtoul(words[2].c_str(), nullptr, 10))), 0;
  if (part == "daemon" && words.size() == 2) return leave_daemon(words[1]), 0;
  if (part == "create" && words.size() == 2) return create(std::strtoull(words[1].c_str(), nullptr, 10));
  std::fprintf(
      stderr,
      "usage: main_job checksum ADDRESS SHA256 | exchange | read-only SOCKET [UID] | daemon PIDFILE | create MIB\n");
  return 2;
}

}  // namespace
}  // namespace main_job

int main(int argc, char** argv) {
  try {
    return main_job::run({argv + 1, argv + argc});
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "main_job: %s\n", failure.what());
    return 1;
  }
}
