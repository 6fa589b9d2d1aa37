// SPDX-License-Identifier: Apache-2.0
// Programs of one user that were started apart: names are looked up in the session's own group and then in the user's,
// and what killed programs leave in a group that lives on goes with them if they have said so.
#include <thread>

#include "client/region/obtain.hpp"
#include "client/session/user_group.hpp"
#include "client/session/views.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using harness::BrokerFixture;
using shmb::Status;
using shmb::client::create_regions;
using shmb::client::join_user_group;

namespace {

shmb::Result<Region::Handle> create(const std::shared_ptr<Session>& session, const std::string& name,
                                    std::uint32_t flags = 0) {
  auto item = named(name, 8192);
  item.flags = flags;
  return std::move(create_regions(session, std::span(&item, 1), 0)[0]);
}
shmb::Result<Region::Handle> attach(const std::shared_ptr<Session>& session, const std::string& address,
                                    std::int64_t wait = 0) {
  return shmb::client::attach_region(session, at(address, kReadWrite), 0, wait);
}

}  // namespace

TEST_CASE(
    "a name that the session's group does not have is found in the user's group, by every call that takes a name") {
  BrokerFixture broker({.expect_empty_books = false});  // the group keeps its names for an hour
  auto maker = open(broker), user = open(broker);
  (void)must(join_user_group(*maker, Deadline::after(0)));
  auto region = must(create(maker, "region"));
  auto pool = must(make_pool(maker, slots_of("pool", 4096, 1)));
  auto alone = must(Queue::open_alone(maker, "alone", queue_spec("", Kind::spsc, true, false)));
  auto own = must(create(user, "own"));  // and with it a group of its own
  CHECK(must(attach(user, "region"))->ref().id == region->ref().id);
  CHECK(must(attach(user, "own"))->ref().id == own->ref().id);
  CHECK(must(find_region(*user, must(shmb::names::parse_region("region")), Deadline::after(0))).record.region.id ==
        region->ref().id);
  CHECK(must(try_pool(user, "pool"))->id() == pool->id());
  {
    auto writes = must(Queue::open_alone(user, "alone", queue_spec("", Kind::spsc, false, true)));
    must(writes->send(bytes_of("x"), 0));
    Message message;
    must(alone->receive(message, false, 0));
    CHECK(text_of(message) == "x");
  }
  const auto absent = attach(user, "absent");
  CHECK(status_of(absent) == Status::not_found);
  CHECK(absent.error().sentence.contains("nor is it in group '" + shmb::client::user_group_name(::geteuid()) + "'"));
  CHECK(status_of(try_pool(user, "absent")) == Status::not_found);
  // The own group comes first.
  auto same = must(create(user, "region"));
  CHECK(must(attach(user, "region"))->ref().id == same->ref().id);
  must(same->release(shmb::client::kReleaseUnname));
  must(unname(*user, must(shmb::client::Target::at("region")), Deadline::after(0)));
  CHECK(status_of(attach(user, "region")) == Status::not_found);
}

TEST_CASE("a name is waited for in both groups, also by a session that has no group yet") {
  BrokerFixture broker;
  auto maker = open(broker), user = open(broker), stranger = open(broker);
  (void)must(join_user_group(*maker, Deadline::after(0)));
  auto own = must(create(user, "own"));
  for (const auto& waiter : {user, stranger}) {
    shmb::Result<Region::Handle> found = shmb::error(Status::system, "");
    std::thread waits([&] { found = attach(waiter, "late", kForever); });
    auto made = must(create(maker, "late"));
    waits.join();
    CHECK(must(std::move(found))->ref().id == made->ref().id);
    must(made->release(shmb::client::kReleaseUnname));
  }
  shmb::Result<Region::Handle> found = shmb::error(Status::system, "");
  std::thread waits([&] { found = attach(user, "late", kForever); });
  auto made = must(create(user, "late"));
  waits.join();
  CHECK(must(std::move(found))->ref().id == made->ref().id);
}

TEST_CASE("a pool that does not exist yet is waited for in both groups, and found as soon as it has its name") {
  BrokerFixture broker;
  auto maker = open(broker), user = open(broker), stranger = open(broker);
  (void)must(join_user_group(*maker, Deadline::after(0)));
  auto own = must(create(user, "own"));
  Pool::Opening opening;
  opening.address = "late";
  opening.wait = kForever;
  // While it waits it asks nothing of the broker, so it opens the pool by the event alone.
  for (const auto& waiter : {user, stranger}) {
    shmb::Result<std::shared_ptr<Pool>> found = shmb::error(Status::system, "");
    std::thread waits([&] { found = Pool::open(waiter, opening); });
    ::usleep(300'000);
    auto made = must(make_pool(maker, slots_of("late", 4096, 1)));
    waits.join();
    CHECK(must(std::move(found))->id() == made->id());
    must(made->remove());
  }
  // A region of that name is another thing, and no name of a pool.
  auto region = must(create(maker, "late"));
  opening.wait = 1'000'000;
  CHECK(status_of(Pool::open(user, opening)) == Status::deadline);
  must(region->release(shmb::client::kReleaseUnname));
}

TEST_CASE("a wait for a name goes on in the group that the session enters meanwhile") {
  BrokerFixture broker;
  auto stranger = open(broker), joins = open(broker);
  Pool::Opening opening;
  opening.address = "late";
  opening.wait = kForever;
  SUBCASE("as its first create makes one, in another thread") {
    shmb::Result<std::shared_ptr<Pool>> pool = shmb::error(Status::system, "");
    shmb::Result<Region::Handle> region = shmb::error(Status::system, "");
    std::thread waits_for_pool([&] { pool = Pool::open(stranger, opening); });
    std::thread waits_for_region([&] { region = attach(stranger, "late", kForever); });
    ::usleep(100'000);
    auto made = must(make_pool(stranger, slots_of("late", 4096, 1)));
    auto created = must(create(stranger, "late"));
    waits_for_pool.join();
    waits_for_region.join();
    CHECK(must(std::move(pool))->id() == made->id());
    CHECK(must(std::move(region))->ref().id == created->ref().id);
  }
  SUBCASE("as it joins another one") {
    auto maker = open(broker);
    auto group = must(maker->create_group({.name = "other"}, Deadline::after(0)));
    (void)must(maker->join_group(group.token, 0, Deadline::after(0)));
    auto made = must(make_pool(maker, slots_of("late", 4096, 1)));
    auto own = must(create(joins, "own"));
    shmb::Result<std::shared_ptr<Pool>> pool = shmb::error(Status::system, "");
    std::thread waits([&] { pool = Pool::open(joins, opening); });
    ::usleep(100'000);
    (void)must(joins->join_group(group.token, 0, Deadline::after(0)));
    waits.join();
    CHECK(must(std::move(pool))->id() == made->id());
  }
}

TEST_CASE("killed programs leave no name behind that goes with its holders, and the group lives on") {
  BrokerFixture broker;
  auto member = open(broker);
  (void)must(join_user_group(*member, Deadline::after(0)));
  harness::Gate ready;
  auto child = harness::Child::run([&] {
    auto session = try_open(broker.socket());
    STEP(1, session && join_user_group(**session, Deadline::after(0)));
    auto region = create(*session, "region", SHMBW_CREATE_NAME_WITH_HOLDERS);
    STEP(2, region);
    PoolSpec spec = slots_of("pool", 4096, 1);
    spec.name_with_holders = true;
    auto pool = make_pool(*session, spec);
    STEP(3, pool);
    ready.open();
    for (;;) ::pause();
    return 0;
  });
  REQUIRE(ready.wait());
  {
    auto region = must(attach(member, "region"));
    auto pool = must(try_pool(member, "pool"));
    child.kill();
    CHECK(child.wait() == 128 + SIGKILL);
    CHECK(must(attach(member, "region"))->ref().id == region->ref().id);  // as long as somebody has them
    CHECK(must(try_pool(member, "pool"))->id() == pool->id());
  }
  CHECK(eventually([&] { return status_of(attach(member, "region")) == Status::not_found; }));
  CHECK(eventually([&] { return status_of(try_pool(member, "pool")) == Status::not_found; }));
}
