// SPDX-License-Identifier: Apache-2.0
// Waits that no name ends: for another thread of this process that opens or leaves the same pool, and for the writer of
// a region that a ticket names. Their deadlines are long, so a lost wake-up hangs.
#include <atomic>
#include <thread>
#include <vector>

#include "client/session/views.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

namespace waits {

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

constexpr std::int64_t kPatient = 600'000'000'000;

Pool::Opening patient_opening(const std::string& address) {
  Pool::Opening opening;
  opening.address = address;
  opening.timeout = kPatient;
  return opening;
}

// A region whose writer has not mapped it yet, and a session that has a ticket to it and nothing else.
struct Unmapped {
  harness::BrokerFixture broker;
  std::shared_ptr<Session> owner = open(broker), bearer = open(broker);
  Region::Handle region;
  Token token;

  Unmapped() {
    auto item = named("", 8192);
    item.flags = kCreateUnmapped;
    region = must(create_region(owner, item));
    token = must(region->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 0, Deadline::after(0))).token;
  }
  Result<Region::Handle> attach(std::int64_t wait) const {
    AttachItem item;
    item.target = Target::with_ticket(token);
    return attach_region(bearer, item, 0, wait);
  }
  std::uint64_t watches() const { return must(broker_status(*owner, Deadline::after(0))).record.watches; }
};

}  // namespace

TEST_CASE("an open waits for the place back that an earlier open of the same pool got too late") {
  const harness::BrokerFixture broker;
  auto pool = must(make_pool(open(broker), slots_of("p", 64, 1)));
  auto other = beside(broker, pool);
  auto opening = patient_opening("p");
  for (int round = 0; round < 3; ++round) {
    opening.timeout = 50'000'000;
    {
      const harness::Stopped stopped(broker.pid());
      CHECK(status_of(Pool::open(other, opening)) == Status::deadline);
      CHECK(status_of(Pool::open(other, opening)) == Status::deadline);
    }
    opening.timeout = kPatient;
    CHECK(must(Pool::open(other, opening))->id() == pool->id());
  }
}

TEST_CASE("threads that open a pool and close it again wait for each other, and each gets its turn") {
  const harness::BrokerFixture broker;
  auto pool = must(make_pool(open(broker), slots_of("p", 64, 1)));
  auto other = beside(broker, pool);
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 50 / harness::kSlowdown; ++round)
        if (!Pool::open(other, patient_opening("p"))) ++refused;
    });
  for (auto& thread : threads) thread.join();
  CHECK(refused == 0);
}

TEST_CASE("the bearer of a ticket sleeps until the writer has mapped the region") {
  const Unmapped world;
  fault::clear();
  CHECK(status_of(world.attach(200'000'000)) == Status::deadline);
  CHECK(fault::count(fault::Call::send) < 10);  // it waits for an event, and does not ask again and again
  Result<Region::Handle> attached = error(Status::invalid, "");
  std::thread waiter([&] { attached = world.attach(kPatient); });
  CHECK(eventually([&] { return world.watches() == 1; }));
  void* const part = must(world.region->map_part(0, 8192, Access::read_write, Deadline::after(0)));
  waiter.join();
  CHECK(status_of(attached) == Status::ok);
  must(world.region->unmap_part(part, 8192));
}

TEST_CASE("the bearer of a ticket that is revoked meanwhile does not wait on") {
  const Unmapped world;
  Result<Region::Handle> attached = error(Status::invalid, "");
  std::thread waiter([&] { attached = world.attach(kPatient); });
  CHECK(eventually([&] { return world.watches() == 1; }));
  must(revoke_ticket(*world.owner, world.token, Deadline::after(0)));
  waiter.join();
  CHECK(status_of(attached) == Status::not_found);
}

}  // namespace waits
