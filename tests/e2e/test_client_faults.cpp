// SPDX-License-Identifier: Apache-2.0
// Each system call that the library makes in each operation fails once: the operation succeeds all the same or fails
// with a sentence, nothing is left in the process or in the broker's books, and the next call works.
#include <cerrno>
#include <map>
#include <vector>

#include "base/fault.hpp"
#include "tests/e2e/client_operations.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;
using shmb::fault::Call;

namespace {

struct Failure {
  Call call;
  const char* name;
  int code;
};

const std::vector<Failure>& failures() {
  static const std::vector<Failure> all = {
      {Call::mmap, "mmap", ENOMEM},
      {Call::madvise, "madvise", ENOMEM},
      {Call::madvise, "madvise", EAGAIN},
      {Call::madvise, "madvise", EFAULT},
      {Call::socket, "socket", EMFILE},
      {Call::socket, "socket", ENOBUFS},
      {Call::connect, "connect", EAGAIN},
      {Call::connect, "connect", ECONNREFUSED},
      {Call::send, "send", ENOBUFS},
      {Call::send, "send", ENOMEM},
      {Call::send, "send", EPIPE},
      {Call::receive, "receive", EAGAIN},
      {Call::receive, "receive", ENOMEM},
      {Call::receive, "receive", ECONNRESET},
      {Call::poll, "poll", EINTR},
      {Call::poll, "poll", ENOMEM},
      {Call::epoll, "epoll", EMFILE},
      {Call::eventfd, "eventfd", EMFILE},
      {Call::getsockopt, "getsockopt", EINVAL},
      {Call::open, "open", EMFILE},
      {Call::read, "read", EIO},
      {Call::dup, "dup", EMFILE},
      {Call::fstat, "fstat", ENOMEM},
      {Call::fallocate, "fallocate", ENOSPC},
      {Call::memfd_create, "memfd_create", EMFILE},
      {Call::ftruncate, "ftruncate", ENOMEM},
      {Call::add_seals, "add_seals", EPERM},
      {Call::reopen, "reopen", EACCES},
      {Call::fchmod, "fchmod", EPERM},
  };
  return all;
}

// How often the operation makes each call.
std::map<Call, long> calls_of(World& world, const Operation& operation) {
  const Owner owner(world);
  Stage stage;
  prepare(world, owner, operation, stage);
  const harness::Injected counting;
  NEED_STATUS(operation.run(stage), ok);
  std::map<Call, long> counts;
  for (const Failure& failure : failures()) counts[failure.call] = shmb::fault::count(failure.call);
  return counts;
}

Try with(const Operation& operation, const Failure& failure, int nth) {
  return [&operation, &failure, nth](Stage& stage) {
    const harness::Injected injected(failure.call, failure.code, nth);
    Attempt attempt{operation.run(stage)};
    attempt.reached = shmb::fault::count(failure.call) >= nth;
    attempt.may_lose = failure.code == EPIPE || failure.call == Call::receive || failure.call == Call::poll;
    return attempt;
  };
}

}  // namespace

TEST_CASE(
    "every call that fails once in every operation: a sentence or success, nothing left, and the next call works") {
  std::vector<BrokerOptions> worlds = {{.engine = "epoll"}, {.engine = "epoll", .kernel = "5.15"}};
  if (harness::engines().size() > 1) worlds.push_back({.engine = "io_uring"});
  if (harness::kSlowdown > 1) worlds.resize(1);
  for (const BrokerOptions& options : worlds) {
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    World world(options);
    Score score;
    harness::RawClient admin = admin_of(world);
    std::vector<Operation> all = session_operations(world.socket());
    for (const Operation& one : region_operations()) all.push_back(one);
    for (const Operation& operation : all) {
      const auto calls = calls_of(world, operation);
      for (const Failure& failure : failures()) {
        for (int nth = 1; nth <= calls.at(failure.call); ++nth) {
          bool more = false;
          std::string wrong;
          try {
            more = trial(world, admin, operation, with(operation, failure, nth), score);
          } catch (const std::exception& failed) {
            wrong = failed.what();
          }
          if (wrong.empty() && !eventually([&] { return empty(admin); })) wrong = "the books are not empty";
          if (!wrong.empty()) {
            const std::string where = std::string(operation.name) + ", call " + failure.name + " number " +
                                      std::to_string(nth) + " fails with " + std::to_string(failure.code);
            CAPTURE(where);
            CHECK(wrong == "");
          }
          if (!more) break;
        }
      }
    }
    MESSAGE(name << ": " << score.trials << " calls failed in turn, " << score.failed << " operations failed by it");
    CHECK(score.trials > 200);
    CHECK(score.failed > 50);
  }
}

TEST_CASE("a release whose packet cannot be sent at once is sent later: the lease does not stay") {
  for (const int code : {ENOBUFS, EAGAIN, ENOMEM}) {
    CAPTURE(code);
    World world({.engine = "epoll"});
    const Session session = world.connect();
    Region region = session.create(4096);
    {
      const harness::Injected injected(Call::send, code, 1, 1);
      region.release();
    }
    session.ping();
    harness::RawClient admin = admin_of(world);
    CHECK(eventually([&] { return leases(admin) == 0; }));
  }
}
