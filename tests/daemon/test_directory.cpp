// SPDX-License-Identifier: Apache-2.0
// The broker's place: made, checked, locked and left as promised, and a sentence for each way that fails.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/sys_socket.hpp"
#include "daemon/start/directory.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace shmb;
using namespace shmb::daemon;

namespace {

unsigned mode_of(const std::string& path) {
  struct stat facts{};
  REQUIRE(::lstat(path.c_str(), &facts) == 0);
  return facts.st_mode & 07777;
}

// A variable of the environment for one scope.
struct Variable {
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) before_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_.empty()) ::unsetenv(name_);
    else ::setenv(name_, before_.c_str(), 1);
  }
  const char* name_;
  std::string before_;
};

}  // namespace

TEST_CASE("a missing directory is made with the mode of its kind, whatever the umask") {
  harness::TempDir folder;
  mode_t before = ::umask(0077);
  CHECK(prepare_directory(folder.file("p"), Mode::private_, ::geteuid(), ::getegid()));
  CHECK(prepare_directory(folder.file("s"), Mode::system, ::geteuid(), ::getegid()));
  ::umask(before);
  CHECK(mode_of(folder.file("p")) == 0700);
  CHECK(mode_of(folder.file("s")) == 0755);
  CHECK(prepare_directory(folder.file("p"), Mode::private_, ::geteuid(), ::getegid()));  // and is accepted again
}

TEST_CASE("the private directory is under XDG_RUNTIME_DIR only where that is the user's own") {
  harness::TempDir folder;
  std::string fallback = "/tmp/shmbroker-" + std::to_string(::geteuid());
  CHECK(default_directory(Mode::system) == "/run/shmbroker");
  {
    Variable runtime("XDG_RUNTIME_DIR", folder.path());
    CHECK(default_directory(Mode::private_) == folder.path() + "/shmbroker");
  }
  for (const char* bad : {"relative", "/nonexistent/x", "/dev/null", ""}) {
    CAPTURE(bad);
    Variable runtime("XDG_RUNTIME_DIR", bad);
    CHECK(default_directory(Mode::private_) == fallback);
  }
  if (::geteuid() != 0) SKIP_CASE("needs root to make a foreign directory");
  REQUIRE(::chown(folder.path().c_str(), 4321, 4321) == 0);
  Variable runtime("XDG_RUNTIME_DIR", folder.path());
  CHECK(default_directory(Mode::private_) == fallback);
}

TEST_CASE("a directory that cannot be made names the reason, also to one without rights") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root with CAP_SETUID");
  harness::TempDir folder;
  ::chmod(folder.path().c_str(), 0755);
  auto child = harness::Child::run_as(4321, 4321, [&] {
    auto made = prepare_directory(folder.file("d"), Mode::private_, 4321, 4321);
    return !made && made.error().sentence.find("choose one that you may write to") != std::string::npos ? 0 : 1;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the lock has one holder") {
  harness::TempDir folder;
  auto first = lock_directory(folder.path());
  REQUIRE(first);
  auto socket = SocketFile::create(folder.file("socket"), 0600);
  REQUIRE(socket);
  auto second = lock_directory(folder.path());
  REQUIRE_FALSE(second);
  CHECK(second.error().status == Status::busy);
  CHECK(second.error().sentence.find("pid " + std::to_string(::getpid())) != std::string::npos);
  first->reset();
  CHECK(lock_directory(folder.path()));
}

TEST_CASE("the lock of a broker that has taken its socket away already is waited for") {
  harness::TempDir folder;
  auto leaving = harness::Child::run([&] {
    auto held = lock_directory(folder.path());
    std::filesystem::create_directory(folder.file("held"));
    ::usleep(100'000);
    return held ? 0 : 1;
  });
  while (!std::filesystem::exists(folder.file("held"))) ::usleep(1000);
  CHECK(lock_directory(folder.path()));
  CHECK(leaving.wait() == 0);
}

TEST_CASE("a lock file that is a link to somewhere else is not followed") {
  harness::TempDir folder;
  std::filesystem::create_symlink(folder.file("elsewhere"), folder.file("broker.lock"));
  CHECK_FALSE(lock_directory(folder.path()));
  CHECK_FALSE(std::filesystem::exists(folder.file("elsewhere")));
}

TEST_CASE("a socket file has its mode from the first moment, replaces a stale one, and goes with its owner") {
  harness::TempDir folder;
  std::string path = folder.file("socket");
  mode_t before = ::umask(0022);
  {
    auto socket = SocketFile::create(path, 0666);
    REQUIRE(socket);
    CHECK(mode_of(path) == 0666);
    CHECK(::umask(0022) == 0022);  // as it was
    Fd taken = socket->take();
    auto client = sys::seqpacket_socket(false);
    CHECK(sys::connect_path(client->get(), path));
  }
  ::umask(before);
  CHECK_FALSE(std::filesystem::exists(path));
  {
    auto stale = sys::seqpacket_socket(false);
    REQUIRE(sys::bind_path(stale->get(), path));
  }
  CHECK(std::filesystem::exists(path));
  CHECK(SocketFile::create(path, 0600));
}

TEST_CASE("a path that no socket can have is refused before anything is made") {
  harness::TempDir folder;
  std::string path = folder.path() + "/" + std::string(108 - folder.path().size() - 1, 's');
  REQUIRE(path.size() == 108);
  CHECK_FALSE(SocketFile::create(path, 0600));
  path.pop_back();
  CHECK(SocketFile::create(path, 0600));
}
