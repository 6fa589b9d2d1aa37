// SPDX-License-Identifier: Apache-2.0
// An errno becomes a status that programs can act on and a sentence that people can.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "base/result.hpp"

using shmb::Status;

TEST_CASE("a failed system call says what was tried and why it failed") {
  const auto failure = shmb::system_failure({EACCES}, "bind of '/run/x/socket'").error();
  CHECK(failure.status == Status::system);
  CHECK(failure.system_errno == EACCES);
  CHECK(failure.sentence == "bind of '/run/x/socket': Permission denied (EACCES)");
}

TEST_CASE("shortages of memory and of descriptors have statuses of their own") {
  for (const int code : {ENOMEM, ENOSPC}) CHECK(shmb::system_failure({code}, "x").error().status == Status::no_memory);
  for (const int code : {EMFILE, ENFILE, ETOOMANYREFS})
    CHECK(shmb::system_failure({code}, "x").error().status == Status::no_descriptors);
}

TEST_CASE("where descriptors are short the sentence says the limit and what to change") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const auto own = shmb::system_failure({EMFILE}, "a socket").error().sentence;
  CHECK(own.starts_with("a socket: Too many open files (EMFILE)"));
  CHECK(own.find(" is " + std::to_string(limit.rlim_cur) + ": close") != std::string::npos);
  CHECK(own.find("RLIMIT_NOFILE of pid") != std::string::npos);
  CHECK(own.find("ulimit -n") != std::string::npos);
  CHECK(shmb::system_failure({ENFILE}, "a socket").error().sentence.find("fs.file-max") != std::string::npos);
}

TEST_CASE("where a file may not be so large the sentence says the limit and what to change, if there is one") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto told = [](rlim_t most, rlim_t hard) {
    const rlimit limit{most, hard};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    return shmb::system_failure({EFBIG}, "ftruncate").error().sentence;
  };
  const auto with = told(1 << 20, before.rlim_max), without = told(before.rlim_cur, before.rlim_max);
  CHECK(with.starts_with("ftruncate: File too large (EFBIG): RLIMIT_FSIZE of pid "));
  CHECK(with.ends_with(" is 1048576 bytes, and counts for shared memory too: raise the limit (ulimit -f)"));
  if (before.rlim_cur == RLIM_INFINITY) CHECK(without == "ftruncate: File too large (EFBIG)");
}

TEST_CASE("errors carry their status through expected") {
  const shmb::Result<int> refused = shmb::error(Status::not_found, "no region 'kv'");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().status == Status::not_found);
  CHECK(refused.error().system_errno == 0);
  const shmb::Sys<int> failed = shmb::sys_error(EIO);
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == shmb::Errno{EIO});
}

namespace {

shmb::Result<std::unique_ptr<int>> box(int value) {
  if (value < 0) return shmb::error(Status::invalid, "negative");
  return std::make_unique<int>(value);
}

shmb::Result<void> must_be_even(int value) {
  if (value % 2 != 0) return shmb::error(Status::denied, "odd");
  return {};
}

shmb::Result<std::string> half(int value, int& reached) {
  SHMB_TRY(boxed, box(value));
  ++reached;
  SHMB_TRY_VOID(must_be_even(*boxed));
  ++reached;
  *boxed /= 2;
  const std::unique_ptr<int> taken = std::move(boxed);
  return std::to_string(*taken);
}

}  // namespace

TEST_CASE("an error that is passed on ends the function, and a value can be used and moved") {
  int reached = 0;
  CHECK(half(8, reached).value() == "4");
  CHECK(reached == 2);
  const auto odd = half(7, reached);
  REQUIRE_FALSE(odd);
  CHECK(odd.error().status == Status::denied);
  CHECK(odd.error().sentence == "odd");
  CHECK(reached == 3);
  const auto negative = half(-1, reached);
  REQUIRE_FALSE(negative);
  CHECK(negative.error().status == Status::invalid);
  CHECK(reached == 3);
}
