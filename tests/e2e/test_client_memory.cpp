// SPDX-License-Identifier: Apache-2.0
// Each allocation that the library makes in each operation fails once, one after the other, until a run of the
// operation passes untouched. The operation succeeds all the same or says that there is no memory. Nothing is left in
// the process or in the broker's books, no message is lost or sent twice, and the operation succeeds when it is
// repeated.
#include <new>

#include "tests/daemon/books/allocations.hpp"
#include "tests/e2e/client_operations.hpp"

using namespace e2e;

namespace {

// What the C++ face itself allocates, as for a list of results, throws as documented.
Try with(const Operation& operation, long nth) {
  return [&operation, nth](Stage& stage) {
    Attempt attempt;
    {
      const room::OneAllocationFails one(nth);
      try {
        attempt.result = operation.run(stage);
      } catch (const std::bad_alloc&) {
        attempt.result = shmbroker::Error(Status::no_memory, "std::bad_alloc");
      }
      attempt.reached = one.failed();
    }
    attempt.may_lose = true;
    const Status status = status_of(attempt.result);
    // A descriptor that came and could not be noted; an answer longer than the room that was made for it.
    const bool says_so = status == Status::no_memory || status == Status::no_descriptors ||
                         sentence_of(attempt.result).find("out of memory") != std::string::npos;
    if (!attempt.result && !says_so)
      e2e::failed(__FILE__, __LINE__, "not no_memory, but " + sentence_of(attempt.result));
    return attempt;
  };
}

void fail_each_allocation(const std::vector<Operation>& operations, World& world) {
  harness::RawClient admin = admin_of(world);
  Score score;
  for (const Operation& operation : operations) {
    const std::string name = operation.name;
    CAPTURE(name);
    long nth = 0;
    for (bool more = true; more;) {
      ++nth;
      CAPTURE(nth);
      std::string wrong;
      try {
        more = trial(world, admin, operation, with(operation, nth), score);
      } catch (const std::exception& failed) {
        wrong = failed.what();
      }
      if (wrong.empty() && !eventually([&] { return empty(admin); })) wrong = "the books are not empty";
      CHECK(wrong == "");
      if (nth > 1000) FAIL("no run was untouched");
    }
  }
  MESSAGE(score.trials << " allocations failed in turn, " << score.failed << " operations failed by it, " << score.lost
                       << " sessions were lost");
  CHECK(score.trials > 50);
}

}  // namespace

TEST_CASE("every allocation of an operation of a session fails once: it says so or succeeds, and nothing is lost") {
  World world({.engine = "epoll"});
  fail_each_allocation(session_operations(world.socket()), world);
}

TEST_CASE("every allocation of an operation of a region fails once: it says so or succeeds, and nothing is lost") {
  World world({.engine = "epoll"});
  fail_each_allocation(region_operations(), world);
}

TEST_CASE("every allocation of an operation of a pool fails once: it says so or succeeds, and nothing is lost") {
  World world({.engine = "epoll"});
  fail_each_allocation(pool_operations(), world);
}
