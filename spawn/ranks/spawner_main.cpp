// SPDX-License-Identifier: Apache-2.0
// shmbroker-spawner PLAN SOCKET: the program that the library starts to guard ranks. Both arguments are numbers of
// descriptors: the plan in a memory file, and the socket to the program that spawns. It is not meant to be started by
// hand.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>

#include "spawn/ranks/process_pair.hpp"
#include "spawn/ranks/spawner.hpp"
#include "spawn/ranks/supervisor.hpp"

int main(int argc, char** argv) {
  using namespace shmb;
  if (argc != 3) {
    std::fputs("shmbroker-spawner is started by libshmbroker alone\n", stderr);
    return spawn::kExitFailed;
  }
  // A standard descriptor that the caller had closed must not become a pipe or socket of the guard: other code may
  // print to it.
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);
  Fd plan_file = Fd::adopt(std::atoi(argv[1])), socket = Fd::adopt(std::atoi(argv[2]));
  (void)::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  auto bytes = spawn::contents(plan_file.get());
  if (!bytes) return spawn::kExitFailed;
  auto plan = spawn::Plan::decode(*bytes);
  plan_file.reset();
  if (!plan) {
    spawn::Verdict verdict;
    verdict.why = plan.error();
    (void)spawn::deliver(socket.get(), verdict);
    return spawn::kExitFailed;
  }
  return spawn::guard_ranks(std::move(*plan), std::move(socket));
}
