// SPDX-License-Identifier: Apache-2.0
// Recycling: what comes back dirty, to whom, and everything that keeps a region off the shelf.
#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "base/sys_memory.hpp"
#include "daemon/serve/memory_pressure.hpp"
#include "proto/names.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/harness/stuck_write.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;
using shmb::daemon::Config;

namespace {

constexpr std::uint32_t kRecycle = SHMBW_RELEASE_RECYCLE;

std::uint64_t inode(const Fd& fd) { return sys::file_facts(fd.get())->inode; }

struct Shop {
  explicit Shop(Config config = private_config()) : world(config), client(world.client(1000)) {
    REQUIRE(client.make_group({.name = "g"}).status() == Status::ok);
    REQUIRE(client.join("g").status() == Status::ok);
  }
  World world;
  Client client;
};

}  // namespace

TEST_CASE("a released region comes back to its group dirty, under a new id, with the same memory") {
  Shop shop;
  Created first = shop.client.create({.length = 4 * kMiB});
  shop.client.ready(first.ref());
  CHECK(shop.client.release(first.ref(), 0, kRecycle).status == Status::ok);
  auto status = shop.client.status();
  CHECK(status.regions == 0);
  CHECK(status.bytes == 4 * kMiB);  // stays charged
  CHECK(status.bytes_cached == 4 * kMiB);
  auto rows = shop.client.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].state == SHMBW_REGION_STATE_CACHED);
  CHECK(rows[0].region.id != first.ref().id);
  CHECK(shop.client.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS).at(0).bytes_cached == 4 * kMiB);
  CHECK(shop.client.attach_id(first.ref(), kWrite).status == Status::not_found);
  CHECK(shop.client.attach_id(rows[0].region, kWrite).status == Status::not_found);
  CHECK(shop.client.watch_region(rows[0].region, 1).status() == Status::not_found);

  Created other = shop.client.create({.length = 2 * kMiB});
  CHECK(other.reply.flags == 0);                                               // of other bytes
  Created second = shop.client.create({.name = "again", .length = 3 * kMiB});  // rounds to the same bytes
  REQUIRE(second.status == Status::ok);
  CHECK(second.reply.flags == SHMBW_CREATED_DIRTY);
  CHECK(second.ref().id != first.ref().id);
  CHECK(inode(second.memory) == inode(first.memory));
  CHECK(shop.client.status().bytes_cached == 0);
  shmbw_list wish{};
  wish.region.id = second.ref().id;
  auto row = shop.client.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS, wish).at(0);
  CHECK(row.length == 3 * kMiB);
  CHECK((row.flags & SHMBW_REGION_DIRTY_BIRTH) != 0);
  CHECK(row.page_kind == SHMBW_PAGE_KIND_HUGE);  // still known
  CHECK(row.state == SHMBW_REGION_STATE_CREATED);
}

TEST_CASE("these uses keep a region off the shelf") {
  Shop shop(private_config());
  Client& client = shop.client;
  Client member = shop.world.client(1000), outside = shop.world.client(1000), foreign = shop.world.client(2000);
  member.join("g");
  CreateRequest wish{.length = 2 * kMiB};
  auto cached_after = [&](auto prepare) {
    Created created = client.create(wish);
    REQUIRE(created.status == Status::ok);
    REQUIRE(created.reply.flags == 0);
    prepare(created);
    client.release(created.ref(), 0, kRecycle);
    return client.status().bytes_cached != 0;
  };
  SUBCASE("nothing does, not even another member") {
    CHECK(cached_after([&](Created& created) {
      member.attach_id(created.ref(), kWrite);
      member.release(created.ref(), 0, kRecycle);
    }));
  }
  SUBCASE("a reference given back without the word that it is unmapped") {
    CHECK(!cached_after([&](Created& created) {
      member.attach_id(created.ref(), kWrite);
      member.release(created.ref());
    }));
    CHECK(!cached_after([&](Created& created) {
      client.attach_id(created.ref(), kWrite);
      client.release(created.ref(), 1);
    }));
  }
  SUBCASE("a member that died with its mapping") {
    CHECK(!cached_after([&](Created& created) {
      Client victim = shop.world.client(1000);
      victim.join("g");
      victim.attach_id(created.ref(), kWrite);
      victim.die();
    }));
  }
  SUBCASE("a member's lease that is still there") {
    CHECK(!cached_after([&](Created& created) { member.attach_id(created.ref(), kWrite); }));
  }
  SUBCASE("a session outside the group that ever held a lease") {
    CHECK(!cached_after([&](Created& created) {
      outside.attach_id(created.ref(), kWrite);
      outside.release(created.ref(), 0, kRecycle);
    }));
  }
  SUBCASE("another uid that ever held a lease") {
    CHECK(!cached_after([&](Created& created) {
      foreign.attach_ticket(Client::ticket_of(client.ticket(created.ref(), kWrite)), kWrite);
      foreign.release(created.ref(), 0, kRecycle);
    }));
  }
  SUBCASE("another uid, though a member") {
    auto fixed =
        client.make_group({.name = "g", .flags = SHMBW_GROUP_ADOPT_EXISTING}).fixed<shmbw_group_create_reply>();
    REQUIRE(foreign.join(fixed.token).status() == Status::ok);
    CHECK(!cached_after([&](Created& created) {
      foreign.attach_id(created.ref(), kWrite);
      foreign.release(created.ref(), 0, kRecycle);
    }));
  }
  SUBCASE("closed writing") {
    CHECK(!cached_after([&](Created& created) {
      client.ready(created.ref());
      member.attach_id(created.ref());
      member.release(created.ref(), 0, kRecycle);
    }));
  }
  SUBCASE("publishing") {
    CHECK(!cached_after([&](Created& created) { client.publish(created.ref()); }));
  }
  SUBCASE("a ticket") {
    CHECK(!cached_after([&](Created& created) { client.ticket(created.ref()); }));
  }
  SUBCASE("no_recycle") {
    wish.flags = SHMBW_CREATE_NO_RECYCLE;
    CHECK(!cached_after([](Created&) {}));
  }
  SUBCASE("a name") {
    wish.name = "n";
    CHECK(!cached_after([](Created&) {}));
  }
  SUBCASE("a size below 256 KiB") {
    wish.length = 252 * 1024;
    CHECK(!cached_after([](Created&) {}));
  }
}

TEST_CASE("only members of the owner's uid get a recycled region, and none that asks for a fresh one") {
  Shop shop;
  Created first = shop.client.create({.length = 2 * kMiB});
  shop.client.release(first.ref(), 0, kRecycle);
  Client outside = shop.world.client(1000), foreign = shop.world.client(2000);
  auto fixed =
      shop.client.make_group({.name = "g", .flags = SHMBW_GROUP_ADOPT_EXISTING}).fixed<shmbw_group_create_reply>();
  REQUIRE(foreign.join(fixed.token).status() == Status::ok);
  CHECK(outside.create({.length = 2 * kMiB, .group = first.reply.group}).reply.flags == 0);
  CHECK(foreign.create({.length = 2 * kMiB}).reply.flags == 0);
  CHECK(shop.client.create({.length = 2 * kMiB, .flags = SHMBW_CREATE_NO_RECYCLE}).reply.flags == 0);
  Created many = shop.client.create({.length = 2 * kMiB, .flags = SHMBW_CREATE_MANY_WRITERS});
  CHECK(many.reply.flags == 0);  // it is sealed at birth
  CHECK(shop.client.create({.length = 2 * kMiB}).reply.flags == SHMBW_CREATED_DIRTY);
}

TEST_CASE("memory whose seals are sealed at birth comes back to many_writers alone") {
  Shop shop;
  Created first = shop.client.create({.length = kMiB, .flags = SHMBW_CREATE_MANY_WRITERS});
  shop.client.release(first.ref(), 0, kRecycle);
  CHECK(shop.client.status().bytes_cached == kMiB);
  CHECK(shop.client.create({.length = kMiB}).reply.flags == 0);  // it could not be sealed by a reader, or published
  Created second = shop.client.create({.length = kMiB, .flags = SHMBW_CREATE_MANY_WRITERS});
  CHECK(second.reply.flags == SHMBW_CREATED_DIRTY);
  CHECK(inode(second.memory) == inode(first.memory));
}

TEST_CASE("a region whose references all came back unmapped is recycled when its name is taken away") {
  Shop shop;
  Created first = shop.client.create({.name = "n", .length = kMiB});
  shop.client.release(first.ref(), 0, kRecycle);
  CHECK(shop.client.status().bytes_cached == 0);
  SUBCASE("by a session without a lease") { shop.client.release(first.ref(), 0, kRecycle | SHMBW_RELEASE_UNNAME); }
  SUBCASE("by a session with a lease and no mapping") {
    shop.client.attach_id(first.ref(), kWrite | SHMBW_RIGHT_RELEASE, SHMBW_ATTACH_NO_FD);
    shop.client.release(first.ref(), 1, kRecycle | SHMBW_RELEASE_UNNAME);
  }
  CHECK(shop.client.status().bytes_cached == kMiB);
}

TEST_CASE("a recycled region taken by a create that is refused goes back to the shelf") {
  Config config = private_config();
  config.limits.session_leases = 1;
  Shop shop(config);
  Created first = shop.client.create({.length = 2 * kMiB});
  shop.client.release(first.ref(), 0, kRecycle);
  Created holder = shop.client.create({.length = 4096});
  CHECK(shop.client.create({.length = 2 * kMiB}).status == Status::limit);
  CHECK(shop.client.status().bytes_cached == 2 * kMiB);
  shop.client.release(holder.ref());
  CHECK(shop.client.create({.length = 2 * kMiB}).reply.flags == SHMBW_CREATED_DIRTY);
}

TEST_CASE("the shelf is bounded by the configuration and by a quarter of the group's limit, oldest out first") {
  Config config = private_config();
  config.limits.shelf_bytes = 64 * kMiB;
  SUBCASE("configuration") { config.limits.shelf_bytes = 8 * kMiB; }
  SUBCASE("a quarter of the group's limit") { config.limits.group_bytes = 32 * kMiB; }
  SUBCASE("a quarter of the uid's") { config.limits.uid_bytes = 32 * kMiB; }
  Shop shop(config);
  auto all = shop.client.create_many(std::vector<CreateRequest>(5, CreateRequest{.length = 2 * kMiB}));
  for (const Created& created : all) {
    shop.world.now += 1;
    shop.client.release(created.ref(), 0, kRecycle);
  }
  CHECK(shop.client.status().bytes_cached == 8 * kMiB);
  CHECK(shop.client.status().bytes == 8 * kMiB);
  // The youngest is taken first, the oldest was dropped.
  CHECK(inode(shop.client.create({.length = 2 * kMiB}).memory) == inode(all[4].memory));
  Created big = shop.client.create({.length = 10 * kMiB});
  shop.client.release(big.ref(), 0, kRecycle);
  CHECK(shop.client.status().bytes_cached == 6 * kMiB);  // does not fit at all and pushes nobody out
}

TEST_CASE("recycled memory goes before a create is refused, and only if that helps") {
  Config config = private_config();
  config.limits.group_bytes = 40 * kMiB;
  Shop shop(config);
  auto all = shop.client.create_many(std::vector<CreateRequest>(5, CreateRequest{.length = 2 * kMiB}));
  for (const Created& created : all) shop.client.release(created.ref(), 0, kRecycle);
  CHECK(shop.client.status().bytes_cached == 10 * kMiB);
  CHECK(shop.client.create({.length = 42 * kMiB}).status == Status::limit);
  CHECK(shop.client.status().bytes_cached == 10 * kMiB);
  CHECK(shop.client.create({.length = 34 * kMiB}).status == Status::ok);
  CHECK(shop.client.status().bytes_cached == 6 * kMiB);
}

TEST_CASE("the region table and the descriptors are made free from the shelf, too") {
  Config config = private_config();
  SUBCASE("regions of the group") {
    config.limits.group_regions = 2;
    Shop shop(config);
    Created first = shop.client.create({.length = 2 * kMiB}), second = shop.client.create();
    shop.client.release(first.ref(), 0, kRecycle);
    CHECK(shop.client.create().status == Status::ok);
    CHECK(shop.client.create().status == Status::limit);
  }
  SUBCASE("descriptors of the broker") {
    config.descriptors_reserved = 0;
    World world(config, {.descriptors_limit = 12, .transport_descriptors = [] { return 10U; }});
    Client client = world.client(1000);
    Created first = client.create({.length = 2 * kMiB}), second = client.create();
    client.release(first.ref(), 0, kRecycle);
    CHECK(client.create().status == Status::ok);
    CHECK(client.create().status == Status::no_descriptors);
  }
}

TEST_CASE("a refusal names memory that is still being freed, and that memory becomes available") {
  Config config = private_config();
  config.limits.group_bytes = 600 * kMiB;
  Shop shop(config);
  Created first = shop.client.create({.length = 100 * kMiB});
  shop.client.ready(first.ref(), SHMBW_PAGE_KIND_SMALL);  // slow to close: goes to the helper thread
  shop.client.release(first.ref(), 0, kRecycle);
  CHECK(shop.client.status().bytes_cached == 100 * kMiB);
  Created refused = shop.client.create({.length = 550 * kMiB});
  CHECK(refused.status == Status::limit);
  CHECK(refused.error.sentence.find("being freed now") != std::string::npos);
  shop.world.wait_for_closes();
  CHECK(shop.client.create({.length = 550 * kMiB}).status == Status::ok);
}

TEST_CASE("a client's report of huge pages causes no long close on the broker's thread") {
  Config config = private_config();
  config.limits.group_bytes = 600 * kMiB;
  Shop shop(config);
  std::uint64_t each = 0;
  bool in_turn = false;
  SUBCASE("one within what a turn closes") {
    each = 60 * kMiB;
    in_turn = true;
  }
  SUBCASE("one above it") { each = 120 * kMiB; }
  SUBCASE("many that are above it together") { each = 20 * kMiB; }
  const std::uint64_t count = in_turn ? 1 : 120 * kMiB / each;
  auto all = shop.client.create_many(std::vector<CreateRequest>(count, CreateRequest{.length = each}));
  for (const Created& created : all) {
    shop.client.ready(created.ref(), SHMBW_PAGE_KIND_HUGE);
    shop.client.release(created.ref(), 0, kRecycle);
  }
  CHECK(shop.client.status().bytes_cached == count * each);
  Created big = shop.client.create({.length = 600 * kMiB});
  if (!in_turn) {
    CHECK(big.status == Status::limit);
    CHECK(big.error.sentence.find("being freed now") != std::string::npos);
    CHECK(shop.client.status().bytes_cached == 0);
    shop.world.wait_for_closes();
    big = shop.client.create({.length = 600 * kMiB});
  }
  CHECK(big.status == Status::ok);
}

TEST_CASE("the shelf is emptied after its idle time and at the group's end") {
  Shop shop;
  Created first = shop.client.create({.length = 2 * kMiB}), second = shop.client.create({.length = 2 * kMiB});
  shop.client.release(first.ref(), 0, kRecycle);
  shop.world.advance(20 * kSecond);
  shop.client.release(second.ref(), 0, kRecycle);
  shop.world.advance(10 * kSecond);
  CHECK(shop.client.status().bytes_cached == 2 * kMiB);
  shop.world.advance(20 * kSecond);
  CHECK(shop.client.status().bytes == 0);
  Created third = shop.client.create({.length = 2 * kMiB});
  shop.client.release(third.ref(), 0, kRecycle);
  shop.client.die();
  CHECK(shop.world.status().bytes == 0);
}

TEST_CASE("a recycled region's old watchers hear that it is gone") {
  Shop shop;
  Created first = shop.client.create({.length = 2 * kMiB});
  shop.client.watch_region(first.ref(), SHMBW_WATCH_EVENT_GONE);
  shop.client.release(first.ref(), 0, kRecycle);
  REQUIRE(shop.client.link().events.size() == 1);
  CHECK(shop.client.link().events[0].fixed<shmbw_region_gone_event>().region.id == first.ref().id);
  CHECK(shop.client.status().watches == 0);
}

TEST_CASE("a region that must be sealed at birth is not made of recycled memory, whose lock a client may hold") {
  Shop shop;
  Created first = shop.client.create({.length = 2 * kMiB});
  shop.client.release(first.ref(), 0, kRecycle);
  harness::StuckWrite stuck(first.memory.get());
  Created many = shop.client.create({.length = 2 * kMiB, .flags = SHMBW_CREATE_MANY_WRITERS});
  CHECK(many.status == Status::ok);
  CHECK(many.reply.flags == 0);
  CHECK((*sys::seals(many.memory.get()) & F_SEAL_SEAL) != 0);
  auto status = shop.client.status();
  CHECK(status.regions == 1);
  CHECK(status.bytes_cached == 2 * kMiB);
  CHECK(status.bytes == 4 * kMiB);
}

TEST_CASE("a create that wants recycled memory only gets it, or nothing is made") {
  Shop shop;
  Created first = shop.client.create({.length = 4 * kMiB});
  shop.client.ready(first.ref());
  CHECK(shop.client.release(first.ref(), 0, kRecycle).status == Status::ok);
  Created other = shop.client.create({.length = 6 * kMiB, .flags = SHMBW_CREATE_RECYCLED_ONLY});
  CHECK(other.status == Status::no_memory);
  CHECK(other.error.sentence.find("group g has no recycled region of 6.0 MiB") != std::string::npos);
  CHECK(shop.client.status().bytes == 4 * kMiB);
  Created second = shop.client.create({.length = 4 * kMiB, .flags = SHMBW_CREATE_RECYCLED_ONLY});
  REQUIRE(second.status == Status::ok);
  CHECK(inode(second.memory) == inode(first.memory));
  CHECK(shop.client.create({.length = 4 * kMiB, .flags = SHMBW_CREATE_RECYCLED_ONLY}).status == Status::no_memory);
}

TEST_CASE("shelf_empty gives up recycled memory of the user only, that of the caller's group first") {
  Shop shop;
  Client neighbour = shop.world.client(1000), stranger = shop.world.client(2000);
  REQUIRE(neighbour.make_group({.name = "n"}).status() == Status::ok);
  REQUIRE(neighbour.join("n").status() == Status::ok);
  REQUIRE(stranger.make_group({.name = "s"}).status() == Status::ok);
  REQUIRE(stranger.join("s").status() == Status::ok);
  for (Client* client : {&neighbour, &shop.client, &stranger}) {
    Created made = client->create({.length = 4 * kMiB});
    client->ready(made.ref());
    CHECK(client->release(made.ref(), 0, kRecycle).status == Status::ok);
  }
  const auto empty = [&](std::uint64_t bytes) {
    return shop.client.call(SHMBW_OP_SHELF_EMPTY, shmbw_shelf_empty{bytes}).fixed<shmbw_shelf_empty_reply>();
  };
  CHECK(shop.client.status().bytes_cached == 12 * kMiB);
  CHECK(empty(1).bytes == 4 * kMiB);
  // Of the groups that a client sees: its user's.
  const auto cached = [](Client& client) {
    std::vector<std::uint64_t> bytes;
    for (const auto& row : client.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS)) bytes.push_back(row.bytes_cached);
    return bytes;
  };
  using Bytes = std::vector<std::uint64_t>;
  CHECK(cached(shop.client) == Bytes{0, 4 * kMiB});
  const auto rest = empty(0);
  CHECK(rest.bytes == 4 * kMiB);
  CHECK(rest.pending == 0);
  CHECK(empty(0).bytes == 0);
  CHECK(cached(shop.client) == Bytes{0, 0});
  CHECK(cached(stranger) == Bytes{4 * kMiB});
}

namespace {

// A world whose processes stall for memory as the test says.
struct Pressed {
  std::optional<std::uint64_t> stalled = 0;  // before the world, which asks for it while it is made
  World world{private_config(), [this] {
                BrokerFacts facts;
                facts.memory_stall = [this] { return stalled; };
                return facts;
              }()};
  Client client = world.client(1000);

  Pressed() {
    REQUIRE(client.make_group({.name = "g"}).status() == Status::ok);
    REQUIRE(client.join("g").status() == Status::ok);
  }
  void shelve() {
    const Created made = client.create({.length = 4 * kMiB});
    CHECK(client.release(made.ref(), 0, kRecycle).status == Status::ok);
  }
};

}  // namespace

TEST_CASE("under memory pressure recycled memory is given up, and nothing that is held or kept") {
  Pressed pressed;
  const Created held = pressed.client.create({.length = 4 * kMiB});
  const Created kept =
      pressed.client.create({.name = "kept", .length = 4 * kMiB, .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -1});
  CHECK(pressed.client.release(kept.ref(), 0, kRecycle).status == Status::ok);
  pressed.shelve();
  pressed.world.advance(kSecond);
  pressed.stalled = 40'000;  // 4 % of the time
  pressed.world.advance(kSecond / 2);
  CHECK(pressed.client.status().bytes_cached == 4 * kMiB);
  pressed.stalled = 95'000;
  pressed.world.advance(kSecond / 2);
  pressed.world.wait_for_closes();
  CHECK(pressed.client.status().bytes_cached == 0);
  CHECK(pressed.client.status().bytes == 8 * kMiB);
  CHECK(pressed.client.status().regions == 2);
  CHECK(std::ranges::any_of(pressed.world.log, [](const std::string& line) {
    return line == "memory pressure: gave up 4.0 MiB of recycled memory";
  }));
  // It is asked again for what is recycled afterwards.
  pressed.shelve();
  CHECK(pressed.client.status().bytes_cached == 4 * kMiB);
  pressed.stalled = 200'000;
  pressed.world.advance(kSecond / 2);
  pressed.world.wait_for_closes();
  CHECK(pressed.client.status().bytes_cached == 0);
  CHECK(pressed.client.release(kept.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
}

TEST_CASE("without the kernel's figures recycled memory stays until a limit or its idle time") {
  Pressed pressed;
  pressed.stalled.reset();
  pressed.shelve();
  pressed.world.advance(2 * kSecond);
  CHECK(pressed.client.status().bytes_cached == 4 * kMiB);
}

TEST_CASE("the stalled time is read from the kernel's text, and from nothing else") {
  CHECK(daemon::stalled_us("some avg10=0.00 avg60=0.00 avg300=0.00 total=12345\nfull avg10=0.00 total=1\n") == 12345);
  for (const char* text : {"", "full avg10=0.00 total=1\n", "some avg10=0.00\n", "some total=\n", "some total=x\n",
                           "some avg10=0 total=99999999999999999999999\n"})
    CHECK_MESSAGE(!daemon::stalled_us(text), text);
}
