// SPDX-License-Identifier: Apache-2.0
// Files by their path: what they are, who may lock them, and that each call can be made to fail.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/temp_dir.hpp"

using shmb::fault::Call;
namespace sys = shmb::sys;

TEST_CASE("a path's facts are its own, or those behind a link") {
  const harness::TempDir folder;
  const std::string directory = folder.path() + "/d", link = folder.path() + "/l", file = folder.path() + "/f";
  REQUIRE(sys::make_directory(directory.c_str(), 0700));
  CHECK(sys::make_directory(directory.c_str(), 0700).error().value == EEXIST);
  REQUIRE(::symlink(directory.c_str(), link.c_str()) == 0);
  auto facts = sys::path_facts(directory.c_str());
  REQUIRE(facts);
  CHECK(facts->is_directory);
  CHECK(facts->mode == 0700);
  CHECK(facts->uid == ::geteuid());
  CHECK(sys::path_facts(link.c_str())->is_link);
  CHECK(sys::path_facts(link.c_str(), true)->is_directory);
  REQUIRE(sys::set_path_mode(directory.c_str(), 0750));
  CHECK(sys::path_facts(directory.c_str())->mode == 0750);
  CHECK(sys::set_path_owner(directory.c_str(), ::geteuid(), ::getegid()));
  auto made = sys::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(made);
  REQUIRE(sys::write_all(made->get(), std::as_bytes(std::span("12345", 5))));
  CHECK(sys::path_facts(file.c_str())->size == 5);
  CHECK(sys::may_execute(file.c_str()).error().value == EACCES);
  REQUIRE(sys::remove_file(file.c_str()));
  CHECK(sys::path_facts(file.c_str()).error().value == ENOENT);
}

TEST_CASE("a lock on a file is had by one open file, until it is let go") {
  const harness::TempDir folder;
  const std::string file = folder.path() + "/lock";
  auto one = sys::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  auto two = sys::open(file.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(one);
  REQUIRE(two);
  REQUIRE(sys::lock_file(one->get()));
  CHECK(sys::lock_file(two->get()).error().value == EWOULDBLOCK);
  REQUIRE(sys::unlock_file(one->get()));
  CHECK(sys::lock_file(two->get()));
}

TEST_CASE("a pipe carries bytes and its end, and closes at exec") {
  auto ends = sys::pipe();
  REQUIRE(ends);
  CHECK((::fcntl((*ends)[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(sys::write_all((*ends)[1].get(), std::as_bytes(std::span("x", 1))));
  (*ends)[1].reset();
  std::byte bytes[4];
  CHECK(sys::read((*ends)[0].get(), bytes).value() == 1);
  CHECK(bytes[0] == std::byte{'x'});
  CHECK(sys::read((*ends)[0].get(), bytes).value() == 0);
  auto copy = sys::duplicate_above((*ends)[0].get(), 10);
  REQUIRE(copy);
  CHECK(copy->get() >= 10);
}

TEST_CASE("every file call can be made to fail") {
  const harness::TempDir folder;
  const std::string& path = folder.path();
  auto fails = [](Call call, auto&& attempt) {
    CAPTURE(static_cast<int>(call));
    const harness::Injected failing(call, EIO);
    auto result = attempt();
    REQUIRE(!result);
    CHECK(result.error().value == EIO);
  };
  fails(Call::stat, [&] { return sys::path_facts(path.c_str()); });
  fails(Call::mkdir, [&] { return sys::make_directory((path + "/d").c_str(), 0700); });
  fails(Call::chmod, [&] { return sys::set_path_mode(path.c_str(), 0700); });
  fails(Call::chown, [&] { return sys::set_path_owner(path.c_str(), ::geteuid(), ::getegid()); });
  fails(Call::unlink, [&] { return sys::remove_file((path + "/f").c_str()); });
  fails(Call::access, [&] { return sys::may_execute(path.c_str()); });
  fails(Call::flock, [&] { return sys::lock_file(0); });
  fails(Call::pipe, [&] { return sys::pipe(); });
  fails(Call::read, [&] { return sys::read(0, {}); });
  fails(Call::dup, [&] { return sys::duplicate_above(0, 10); });
}
