// SPDX-License-Identifier: Apache-2.0
// The shortest program that shows the path: create, write, publish, read in another process. It is the README's
// example; tests/docs/example_test.py runs it and compares the two.
//
//     g++ -std=c++20 hello.cpp -o hello $(pkg-config --cflags --libs shmbroker)
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <shmbroker/shmbroker.hpp>

int main() {
  auto session = shmbroker::Session::connect();                 // finds a broker, or starts a private one
  auto region = session.create(64 << 20, {.name = "numbers"});  // 64 MiB, mapped, with memory behind it
  region.as_span<int>()[0] = 42;                                // plain memory from here on
  auto published = std::move(region).publish();                 // nobody can write to it any more
  if (fork() == 0) {
    auto reader = session.attach("numbers");  // the child opens a session of its own
    std::printf("%d in %zu bytes\n", reader.as_span<const int>()[0], reader.size());
    std::fflush(stdout);
    _exit(0);  // or a crash: the broker sees the end of the process
  }
  int status = 1;
  wait(&status);
  return status;
}
