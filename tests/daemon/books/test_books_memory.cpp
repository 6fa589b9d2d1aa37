// SPDX-License-Identifier: Apache-2.0
// The broker lives through each allocation that fails: every one of a session with all kinds of requests fails once,
// one after the other, and no client learns of it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "daemon/kit/reserve.hpp"
#include "tests/daemon/books/allocations.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
namespace reserve = shmb::daemon::reserve;

namespace {

// Three processes of two users: groups, regions, tickets, watches, recycled memory, lists, a pool, a death, refusals.
// Every request has the answer that it has when no allocation fails.
void live(World& world) {
  Client one = world.client(1000), two = world.client(1000), other = world.client(2000);
  const auto group = one.make_group({.name = "train"}).fixed<shmbw_group_create_reply>().group;
  CHECK(one.join("train").status() == Status::ok);
  CHECK(two.join("train").status() == Status::ok);
  CHECK(two.watch_reclaims().status() == Status::ok);
  CHECK(two.watch_group(group).status() == Status::ok);
  CHECK(two.watch_name("train", "late").status() == Status::ok);
  std::vector<CreateRequest> wishes;
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back("region-with-a-long-name-" + std::to_string(i));
  for (const std::string& name : names) wishes.push_back({.name = name});
  const std::vector<Created> made = one.create_many(wishes);
  for (const Created& each : made) CHECK(each.status == Status::ok);
  CHECK(one.create({.name = names[0]}).status == Status::exists);
  one.ready(made[0].ref());
  const Attached attached = two.attach_name("train", names[0], kRead);
  CHECK(attached.status == Status::ok);
  Packet& ticket = one.ticket(made[1].ref(), kRead);
  CHECK(ticket.status() == Status::ok);
  CHECK(other.attach_ticket(Client::ticket_of(ticket), kRead).status == Status::ok);
  CHECK(other.attach_name("train", names[0], kRead, 1000).status == Status::not_found);
  CHECK(one.create({.name = "late"}).status == Status::ok);
  CHECK(two.link().events.size() == 1);
  const Created large = one.create({.length = 4 * kMiB});
  CHECK(one.release(large.ref(), 0, SHMBW_RELEASE_RECYCLE).status == Status::ok);
  CHECK(one.create({.length = 4 * kMiB}).reply.flags == SHMBW_CREATED_DIRTY);
  CHECK(two.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 22);
  CHECK(two.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).size() == 24);
  shmbw_pool_create pool{};
  pool.slots = 4;
  pool.name_len = 4;
  CHECK(one.call(SHMBW_OP_POOL_CREATE, pool, "pool").status() == Status::ok);
  one.die();
  CHECK(!two.link().events.empty());
  CHECK(two.rows<shmbw_report_record>(SHMBW_TABLE_REPORTS).size() == 1);
  CHECK(two.status().sessions == 2);
}

}  // namespace

TEST_CASE("every allocation fails once, one after the other, until a run passes untouched") {
  reserve::keep();
  long nth = 0;
  for (bool failed = true; failed;) {
    ++nth;
    CAPTURE(nth);
    World world(system_config());
    {
      const room::OneAllocationFails one(nth);
      live(world);
      failed = one.failed();
    }
    reserve::refill();
    CHECK(!reserve::low());
    if (nth > 100'000) FAIL("no run was untouched");
  }
  MESSAGE("allocations that failed: ", nth - 1);
  CHECK(nth > 200);
  std::set_new_handler(nullptr);
}
