// SPDX-License-Identifier: Apache-2.0
// Every operation of the library by itself, for tests that let one thing fail in it: a system call, or an allocation.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/face/shmbroker_pool.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/raw_client.hpp"

namespace e2e {

// The world in which an operation begins and ends: a session, a region of its own, one of another session, a pool and
// its queue.
struct Stage {
  std::optional<Session> session;
  std::optional<Region> own;
  std::vector<Region> made;
  std::vector<shmbroker::ReadOnlyRegion> attached;
  std::optional<shmbroker::Pool> pool;
  std::optional<shmbroker::Queue> out, in;
  std::optional<shmbroker::QueueSet> set;
  std::optional<shmbroker::Message> message;
  std::vector<shmbroker::Slot> slots;
  RegionId foreign;
  Ticket ticket;
  shmbroker::WatchId watch{};

  // What there is of own, pool, out, in, set and message.
  using There = std::array<bool, 6>;
  There there() const;
  void drop_made(const There& before);  // what was not there before
  void drop_all();                      // all but the session
};

using Step = std::function<shmbroker::Result<void>(Stage&)>;
struct Operation {
  const char* name;
  Step prepare;  // without faults
  Step run;
  Step verify = {};  // what must hold once it has succeeded, however often it was tried
};

std::vector<Operation> session_operations(const std::string& socket);
std::vector<Operation> region_operations();
std::vector<Operation> pool_operations();

// One run of an operation with something that fails in it.
struct Attempt {
  shmbroker::Result<void> result;
  bool reached = false;   // it came to what was to fail
  bool may_lose = false;  // the session may be lost by it
};
using Try = std::function<Attempt(Stage&)>;

struct Score {
  long trials = 0, failed = 0, lost = 0;
};

// The session that holds the region which others attach, in the group that they join.
struct Owner {
  explicit Owner(World& world);
  Session session;
  Region weights;
};

void prepare(World& world, const Owner& owner, const Operation& operation, Stage& stage);
// The operation fails with a sentence or succeeds, nothing is left in the process or in the broker's books, and the
// next time it succeeds. False: the attempt did not come to what was to fail.
bool trial(World& world, harness::RawClient& admin, const Operation& operation, const Try& attempt, Score& score);

// Whether nothing is left but the session that asks.
bool empty(harness::RawClient& admin);
harness::RawClient admin_of(World& world);
std::uint64_t leases(harness::RawClient& admin);

}  // namespace e2e
