// SPDX-License-Identifier: Apache-2.0
// The seam itself: what is injected happens exactly then and so often, and instructions with mistakes are refused.
#include <doctest/doctest.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "base/fault.hpp"
#include "base/fd.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/harness/injected.hpp"

using shmb::fault::Call;
namespace fault = shmb::fault;

TEST_CASE("without injection no call fails and each is counted") {
  const harness::Injected none;
  for (int i = 0; i < 5; ++i) CHECK(fault::fails(Call::poll) == 0);
  CHECK(fault::count(Call::poll) == 5);
  CHECK(fault::count(Call::kill) == 0);
}

TEST_CASE("a fault fails the next call once") {
  const harness::Injected injected(Call::open, EMFILE);
  CHECK(fault::fails(Call::read) == 0);
  CHECK(fault::fails(Call::open) == EMFILE);
  CHECK(fault::fails(Call::open) == 0);
}

TEST_CASE("a fault can wait for the k-th call and last for n calls or for ever") {
  const harness::Injected injected(Call::open, ENFILE, 3, 2);
  CHECK(fault::fails(Call::open) == 0);
  CHECK(fault::fails(Call::open) == 0);
  CHECK(fault::fails(Call::open) == ENFILE);
  CHECK(fault::fails(Call::open) == ENFILE);
  CHECK(fault::fails(Call::open) == 0);
  fault::inject(Call::write, ENOSPC, 2, -1);
  CHECK(fault::fails(Call::write) == 0);
  for (int i = 0; i < 10; ++i) CHECK(fault::fails(Call::write) == ENOSPC);
  fault::clear();
  CHECK(fault::fails(Call::write) == 0);
  CHECK(fault::count(Call::write) == 1);
}

TEST_CASE("several faults of one call take their turns") {
  const harness::Injected injected(Call::send, EAGAIN, 1);
  fault::inject(Call::send, ETOOMANYREFS, 3);
  CHECK(fault::fails(Call::send) == EAGAIN);
  CHECK(fault::fails(Call::send) == 0);
  CHECK(fault::fails(Call::send) == ETOOMANYREFS);
  CHECK(fault::fails(Call::send) == 0);
}

TEST_CASE("an injected EINTR is repeated by the wrapper and never seen above") {
  const harness::Injected injected(Call::eventfd, EINTR, 1, 3);
  CHECK(shmb::sys::event_fd());
  CHECK(fault::count(Call::eventfd) == 4);
}

TEST_CASE("exactly the injected number of calls fails when threads race for them") {
  const harness::Injected injected(Call::outq, EIO, 1, 500);
  std::vector<int> failures(4);
  {
    std::vector<std::jthread> threads;
    for (int& mine : failures)
      threads.emplace_back([&mine] {
        for (int i = 0; i < 1000; ++i) mine += fault::fails(Call::outq) != 0;
      });
  }
  CHECK(failures[0] + failures[1] + failures[2] + failures[3] == 500);
  CHECK(fault::count(Call::outq) == 4000);
}

TEST_CASE("instructions as text do what the calls do") {
  const harness::Injected none;
  REQUIRE(fault::configure("pretend_kernel=5.15;fail=memfd_create:EMFILE:2;fail=accept:24:1:-1;"));
  CHECK(fault::pretends_before(5, 16));
  CHECK_FALSE(fault::pretends_before(5, 15));
  CHECK(fault::fails(Call::memfd_create) == 0);
  CHECK(fault::fails(Call::memfd_create) == EMFILE);
  CHECK(fault::fails(Call::memfd_create) == 0);
  for (int i = 0; i < 5; ++i) CHECK(fault::fails(Call::accept) == EMFILE);
  REQUIRE(fault::configure("pretend_kernel=0.0"));
  CHECK_FALSE(fault::pretends_before(99, 0));
  CHECK(fault::configure(""));
}

TEST_CASE("instructions with a mistake are refused with the part that is wrong") {
  const harness::Injected none;
  for (const char* text : {"fail", "fail=", "fail=accept", "fail=nothing:EIO", "fail=accept:ENOSUCH", "fail=accept:0",
                           "fail=accept:-5", "fail=accept:EIO:0", "fail=accept:EIO:1:0", "fail=accept:EIO:1:-2",
                           "fail=accept:EIO:x", "fail=accept:EIO:1:1:1", "pretend_kernel=5", "pretend_kernel=5.x",
                           "pretend_kernel=5.15.1", "pretend_kernel=-5.1", "pretend=5.15", "x"}) {
    CAPTURE(text);
    const auto done = fault::configure(text);
    REQUIRE_FALSE(done);
    CHECK(done.error().status == shmb::Status::invalid);
    CHECK(done.error().sentence.find(text) != std::string::npos);
  }
  CHECK(fault::fails(Call::accept) == 0);
}
