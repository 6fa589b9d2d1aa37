// SPDX-License-Identifier: Apache-2.0
// See bare_restart.hpp.
#include "tools/benchmarks/floors/bare_restart.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

// Both have one table. The child ends with its parent, also if the parent has ended already.
pid_t clone_with_table() {
  const pid_t parent = getpid();
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, 0L));
  must(pid, "clone");
  if (pid == 0) {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (getppid() != parent) _exit(0);
  }
  return pid;
}

// Those that the records name, and the few of this process itself.
void close_gaps(std::span<const int> named, std::span<const int> own) {
  std::vector<int> booked(named.begin(), named.end());
  booked.insert(booked.end(), own.begin(), own.end());
  std::ranges::sort(booked);
  unsigned next = 0;
  for (const int number : booked) {
    const auto here = static_cast<unsigned>(number);
    if (here > next) must(close_range(next, here - 1, 0), "close_range");
    next = here + 1;
  }
  must(close_range(next, ~0U, 0), "close_range");
}

// One client after the other; each packet is answered with the number of this process. A server that is killed in
// accept(2) may take the next client with it. In poll(2) it cannot.
void serve(int listener) {
  for (;;) {
    pollfd one{listener, POLLIN, 0};
    must(poll(&one, 1, -1), "poll");
    const Fd client = Fd::adopt(must(accept(listener, nullptr, nullptr), "accept"));
    char packet[256];
    const pid_t me = getpid();
    while (recv(client.get(), packet, sizeof packet, 0) > 0)
      if (send(client.get(), &me, sizeof me, MSG_NOSIGNAL) < 0) break;
  }
}

}  // namespace

int bare_keeper(const std::string& socket, int clients, int regions, int record_bytes) {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  table.rlim_cur = table.rlim_max;
  setrlimit(RLIMIT_NOFILE, &table);
  const std::size_t bytes = static_cast<std::size_t>(record_bytes) + static_cast<std::size_t>(regions) * sizeof(int);
  void* const memory =
      mmap(nullptr, std::max(bytes, 4 * KiB), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap");
  const std::span<int> named(static_cast<int*>(memory), static_cast<std::size_t>(regions));
  const std::span<std::byte> records(reinterpret_cast<std::byte*>(named.data() + named.size()),
                                     static_cast<std::size_t>(record_bytes));
  fill(records.data(), records.size(), 1);
  const int own[] = {0, 1, 2, listen_at(socket, 16)};
  // In turns, as clients come and create.
  for (int client = 0, region = 0; client < std::max(clients, 1); ++client) {
    if (clients > 0) {
      int pair[2];
      must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "socketpair");
      must(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)), "pidfd_open");
      close(pair[1]);
    }
    const int until = regions * (client + 1) / std::max(clients, 1);
    for (; region < until; ++region) named[static_cast<std::size_t>(region)] = bare_region(4096).release();
  }
  if (clone_with_table() == 0)
    for (;;) pause();
  for (bool first = true;; first = false) {
    const pid_t server = clone_with_table();
    if (server == 0) {
      if (!first) {
        close_gaps(named, own);
        volatile std::uint64_t sum = read_all(records.data(), records.size());
        (void)sum;
      }
      serve(own[3]);
    }
    must(waitpid(server, nullptr, 0), "waitpid");
  }
}

}  // namespace shmb::bench
