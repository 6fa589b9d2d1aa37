// SPDX-License-Identifier: Apache-2.0
// Whom the end of a tree spares as its broker: the process that listens on the socket, also after a restart.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "spawn/ranks/bystander.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/temp_dir.hpp"

namespace {

// A process that listens on `path`; nobody there is accepted. It listens before this returns.
harness::Child listening(const std::string& path, const harness::Gate& listens) {
  auto child = harness::Child::run([&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ::unlink(path.c_str());
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 1;
    if (::listen(socket, 64) != 0) return 2;
    listens.open();
    for (;;) ::pause();
  });
  REQUIRE(listens.wait());
  return child;
}

bool comes_to_spare(shmb::spawn::Bystander& bystander, const std::vector<pid_t>& pids) {
  for (int i = 0; i < 3000; ++i) {
    if (bystander.pids() == pids) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("the broker that listens on the socket is spared, and the one that has come in its place") {
  harness::TempDir folder;
  const std::string path = folder.file("socket");
  shmb::spawn::Bystander bystander(path);
  CHECK(bystander.pids().empty());
  const harness::Gate first_listens, next_listens;
  auto first = listening(path, first_listens);
  CHECK(comes_to_spare(bystander, {first.pid()}));
  CHECK(bystander.pids() == std::vector<pid_t>{first.pid()});
  first.kill();
  (void)first.wait();
  CHECK(comes_to_spare(bystander, {}));  // its number may be another process' from now on
  auto next = listening(path, next_listens);
  CHECK(comes_to_spare(bystander, {next.pid()}));
}
