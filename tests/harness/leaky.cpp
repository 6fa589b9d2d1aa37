// SPDX-License-Identifier: Apache-2.0
// Each case leaks on purpose (or must not be blamed); harness_test.py knows which the guard has to name.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "tests/harness/child.hpp"
#include "tests/harness/leak_guard.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

const int hurried = harness::patience_ms = 200;

TEST_CASE("clean case") {
  const harness::TempDir folder;
  const int fd = ::open(folder.file("x").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(fd >= 0);
  ::close(fd);
  std::thread([] {}).join();
  harness::Gate gate;
  auto child = harness::Child::run([&] { return gate.wait() ? 3 : 4; });
  gate.open();
  CHECK(child.wait() == 3);
}

TEST_CASE("killed child is 128 + signal") {
  auto child = harness::Child::run([] {
    ::pause();
    return 0;
  });
  child.kill(SIGTERM);
  CHECK(child.wait() == 128 + SIGTERM);
}

TEST_CASE("descriptor leaks") { CHECK(::open("/dev/null", O_RDONLY) >= 0); }

TEST_CASE("closes a stranger's descriptor") { CHECK(::close(0) == 0); }

TEST_CASE("mapping leaks") { CHECK(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED); }

TEST_CASE("memfd mapped privately leaks") {
  const int fd = ::memfd_create("leaked", MFD_CLOEXEC);
  CHECK(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
  ::close(fd);
}

TEST_CASE("zombie leaks") {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  CHECK(pid > 0);
}

TEST_CASE("thread leaks") {
  std::thread([] { ::pause(); }).detach();
}

TEST_CASE("books not empty") {
  harness::add_books_check([] { return harness::current_case() == "books not empty" ? "1 region" : ""; });
}

TEST_CASE("fixture reports") { harness::report_leak("a fixture's books"); }

TEST_CASE("skips aloud") { SKIP_CASE("this machine lacks it"); }
