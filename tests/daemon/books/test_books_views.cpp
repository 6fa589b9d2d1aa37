// SPDX-License-Identifier: Apache-2.0
// LIST, STATUS and WATCH: pages that are stable under change, what each asker sees, events in order.
#include <malloc.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/mapping.hpp"
#include "daemon/books/image.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;
using shmb::daemon::Config;

TEST_CASE("a table of many pages loses nothing and repeats nothing while it changes") {
  World world;
  Client client = world.client(1000);
  std::vector<Created> all;
  for (int i = 0; i < 10; ++i)
    for (Created& created : client.create_many(std::vector<CreateRequest>(200))) all.push_back(std::move(created));
  for (std::uint32_t table : {SHMBW_TABLE_REGIONS, SHMBW_TABLE_LEASES}) {
    std::set<std::uint64_t> seen;
    shmbw_list wish{};
    wish.table = table;
    std::size_t pages = 0, released = 0;
    do {
      Packet& page = client.list(wish);
      CHECK(page.bytes.size() <= SHMBW_MAX_MESSAGE);
      auto reply = page.fixed<shmbw_list_reply>();
      if (pages == 0) CHECK(reply.total_count == all.size());
      wire::RecordReader reader(page.view().rest, reply.element_size);
      for (unsigned i = 0; i < reply.count; ++i) {
        if (table == SHMBW_TABLE_REGIONS) {
          auto record = reader.next<shmbw_region_record>();
          CHECK(seen.insert(record->region.id).second);
          CHECK(reader.text(record->group_len));
        } else {
          CHECK(seen.insert(reader.next<shmbw_lease_record>()->region.id).second);
        }
      }
      wish.cursor = reply.next;
      ++pages;
      // Between two pages a seen one and an unseen one go, and a new one comes.
      if (wish.cursor != 0) {
        for (std::size_t at : {released, all.size() - 1 - released}) client.release(all[at].ref());
        ++released;
        client.create();
      }
    } while (wish.cursor != 0);
    CHECK(pages > 1);
    for (std::size_t at = released; at + released < all.size(); ++at) CHECK(seen.contains(all[at].ref().id));
    all.erase(all.end() - static_cast<std::ptrdiff_t>(released), all.end());
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(released));
    for (const auto& row : client.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS))
      if (std::ranges::none_of(all, [&](const Created& created) { return created.ref().id == row.region.id; }))
        client.release(row.region);
  }
}

TEST_CASE("groups in pages: those that live throughout come once, whatever comes and goes in between") {
  World world;
  Client client = world.client(1000), other = world.client(1000);
  std::vector<std::uint64_t> ids;
  const auto make = [&](const std::string& name) {
    return client.make_group({.name = name}).fixed<shmbw_group_create_reply>().group;
  };
  for (int i = 0; i < 1500; ++i) ids.push_back(make("group-" + std::to_string(i)));
  std::vector<std::uint64_t> seen;
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_GROUPS;
  std::size_t pages = 0;
  for (;; ++pages) {
    const Packet& page = other.list(wish);
    const auto reply = page.fixed<shmbw_list_reply>();
    CHECK(reply.total_count == ids.size());  // as the first page counted them
    wire::RecordReader reader(page.view().rest, reply.element_size);
    for (unsigned i = 0; i < reply.count; ++i) {
      const auto record = reader.next<shmbw_group_record>();
      seen.push_back(record->group);
      CHECK(reader.text(record->name_len));
    }
    if ((wish.cursor = reply.next) == 0) {
      CHECK(pages >= 2);
      break;
    }
    client.leave(ids[pages]);                   // seen
    client.leave(ids[ids.size() - 1 - pages]);  // to be seen, and its place is taken
    make("later-" + std::to_string(pages));
    // The very group that the page ended with.
    const auto last = std::ranges::find(ids, reply.next);
    REQUIRE(last != ids.end());
    client.leave(*last);
  }
  CHECK(std::ranges::is_sorted(seen));
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
  for (std::size_t i = pages; i + pages < ids.size(); ++i) CHECK(std::ranges::binary_search(seen, ids[i]));
}

TEST_CASE("totals are counted once for all pages of a listing, and again for any other request") {
  World world;
  Client client = world.client(1000), other = world.client(1000);
  client.make_group({.name = "g"});
  client.join("g");
  for (int i = 0; i < 5; ++i) client.create_many(std::vector<CreateRequest>(200));
  other.make_group({.name = "h"});
  other.join("h");
  for (int i = 0; i < 3; ++i) other.create_many(std::vector<CreateRequest>(200));
  const auto page = [](Client& asker, std::uint64_t cursor, std::string_view group = {}) {
    shmbw_list wish{};
    wish.table = SHMBW_TABLE_REGIONS;
    wish.cursor = cursor;
    return asker.list(wish, group).fixed<shmbw_list_reply>();
  };
  const auto all = page(client, 0);
  REQUIRE(all.next != 0);
  CHECK(all.total_count == 1600);
  CHECK(all.total_bytes == 1600 * 4096);
  other.create();
  CHECK(page(client, all.next).total_count == 1600);  // goes on
  CHECK(page(client, all.next).total_count == 1601);  // asks again for a page that it has had
  CHECK(page(other, all.next).total_count == 1601);   // never began
  // Two listings at once: each has its own totals, however their pages come.
  std::uint64_t of_all = 0, of_g = 0;
  std::size_t rows = 0, rows_of_g = 0;
  do {
    for (auto [cursor, count, group, total] : {std::tuple{&of_all, &rows, std::string_view(), 1601U},
                                               std::tuple{&of_g, &rows_of_g, std::string_view("g"), 1000U}}) {
      if (*count != 0 && *cursor == 0) continue;
      const auto reply = page(client, *cursor, group);
      CHECK(reply.total_count == total);
      CHECK(reply.total_bytes == std::uint64_t{total} * 4096);
      *cursor = reply.next;
      *count += reply.count;
    }
  } while (of_all != 0 || of_g != 0);
  CHECK(rows == 1601);
  CHECK(rows_of_g == 1000);
}

TEST_CASE("a page of regions has at most 128 rows, whatever the names' lengths") {
  World world;
  Client client = world.client(1000);
  client.make_group({.name = std::string(96, 'g')});
  client.join(std::string(96, 'g'));
  for (int i = 0; i < 400; ++i) {
    std::string name = std::to_string(i) + std::string(static_cast<std::size_t>(i % 90), 'x');
    REQUIRE(client.create({.name = name}).status == Status::ok);
  }
  std::size_t pages = 0;
  CHECK(client.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS, {}, &pages).size() == 400);
  CHECK(pages == 4);
}

TEST_CASE("a session sees its uid and its group; the admin socket sees all") {
  World world(system_config());
  Client a = world.client(1000), same = world.client(1000), b = world.client(2000), admin = world.admin();
  auto fixed = a.make_group({.name = "g"}).fixed<shmbw_group_create_reply>();
  a.join("g");
  Created theirs = b.create({.name = "private"});
  Created created = a.create({.name = "n"});
  CHECK(same.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 1);
  CHECK(b.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 1);
  CHECK(admin.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 2);
  CHECK(admin.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS).size() == 3);
  CHECK(admin.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS).size() == 4);
  CHECK(a.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS).size() == 2);
  CHECK(admin.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).size() == 2);
  // A guest with a ticket sees the region and its own lease, not the owner's.
  b.attach_ticket(Client::ticket_of(a.ticket(created.ref())));
  CHECK(b.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 2);
  shmbw_list of_region{};
  of_region.region = created.ref();
  auto leases = b.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES, of_region);
  REQUIRE(leases.size() == 1);
  CHECK(leases[0].uid == 2000);
  CHECK(a.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES, of_region).size() == 2);  // the owner sees both
  CHECK(b.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS).size() == 1);
  // As a member it sees the group.
  b.join(fixed.token);
  CHECK(b.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS).size() == 2);
  CHECK(b.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS).size() == 2);  // itself and the other member
}

TEST_CASE("filters by group, by its name, by region, by name and by owner") {
  World world;
  Client a = world.client(1000), admin = world.admin();
  auto g = a.make_group({.name = "g"}).fixed<shmbw_group_create_reply>().group;
  a.make_group({.name = "h"});
  a.create({.name = "n", .group = g, .rights = 0});
  a.create({.name = "m", .length = 9000, .group = g});
  a.join("h");
  Created other = a.create({.name = "n"});
  auto count = [](Client& asker, shmbw_list wish, std::string_view group, std::string_view name) {
    wish.table = SHMBW_TABLE_REGIONS;
    auto reply = asker.list(wish, group, name).fixed<shmbw_list_reply>();
    CHECK(reply.count == reply.total_count);
    return reply;
  };
  CHECK(count(a, {}, "", "").count == 3);
  CHECK(count(a, {}, "", "").total_bytes == 4096 + 12288 + 4096);
  CHECK(count(a, {.group = g}, "", "").count == 2);
  CHECK(count(a, {}, "g", "").count == 2);
  CHECK(count(a, {}, "g", "n").count == 1);
  CHECK(count(a, {}, "", "n").count == 2);
  CHECK(count(a, {}, "nosuch", "").count == 0);
  CHECK(count(a, {.region = other.ref()}, "", "").count == 1);
  CHECK(count(a, {.region = {other.ref().id, 7, 0}}, "", "").count == 0);
  CHECK(count(admin, {.flags = SHMBW_LIST_OWNER_GIVEN, .owner_uid = 1000}, "", "").count == 3);
  CHECK(count(admin, {.flags = SHMBW_LIST_OWNER_GIVEN, .owner_uid = 1001}, "", "").count == 0);
  CHECK(count(admin, {.flags = SHMBW_LIST_OWNER_GIVEN, .owner_uid = 1000}, "h", "").count == 1);
  std::string by_id = "#" + std::to_string(g);
  CHECK(count(admin, {.flags = SHMBW_LIST_OWNER_GIVEN, .owner_uid = 1000}, by_id, "").count == 2);
  CHECK(count(admin, {.flags = SHMBW_LIST_OWNER_GIVEN, .owner_uid = 1001}, by_id, "").count == 0);
  shmbw_list unknown{};
  unknown.table = 99;
  CHECK(a.list(unknown).status() == Status::invalid);
  unknown.table = SHMBW_TABLE_REGIONS;
  unknown.flags = 0x80;
  CHECK(a.list(unknown).status() == Status::unknown_flags);
}

TEST_CASE("a region's row tells memory touched, holders, writers and tickets") {
  World world(system_config());
  Client a = world.client(1000, 4242), b = world.client(1000);
  Created created = a.create({.name = "n", .length = 65536, .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 5 * kSecond});
  b.attach_id(created.ref());
  a.ticket(created.ref());
  Mapping mapping = std::move(*Mapping::map(created.memory.get(), 0, 65536, Access::read_write));
  mapping.data()[0] = mapping.data()[8192] = std::byte{1};
  auto row = a.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).at(0);
  CHECK(row.touched == 2 * 4096);
  CHECK(row.holders == 2);
  CHECK(row.writers == 1);
  CHECK(row.tickets == 1);
  CHECK(row.creator_pid == 4242);
  CHECK(row.created == world.now);
  CHECK(row.keep == 5 * kSecond);
  CHECK(row.freed_at == 0);
  CHECK((row.flags & (SHMBW_REGION_NAMED | SHMBW_REGION_KEPT)) == SHMBW_REGION_NAMED);
}

TEST_CASE("status tells the facts, the tables and the counters") {
  BrokerFacts facts;
  facts.engine = SHMBW_ENGINE_EPOLL;
  facts.engine_reason = "asked for";
  facts.losses = {"no pidfd", "no CAP_SYS_RESOURCE"};
  facts.kernel = "6.18";
  facts.in_flight = [] { return 7U; };
  World world(private_config(), facts);
  Client client = world.client(1000);
  client.create({.length = 3000});
  client.create({.length = UINT64_MAX});
  world.advance(5 * kSecond);
  Packet& reply = client.call(SHMBW_OP_STATUS, shmbw_status{});
  auto status = reply.fixed<shmbw_status_reply>();
  CHECK(status.mode == SHMBW_MODE_PRIVATE);
  CHECK(status.engine == SHMBW_ENGINE_EPOLL);
  CHECK(status.uptime == 5 * kSecond);
  CHECK(status.bytes == 4096);
  CHECK(status.bytes_limit == 1ULL << 40);
  CHECK(status.regions == 1);
  CHECK(status.leases == 1);
  CHECK(status.sessions == 1);
  CHECK(status.refusals == 1);
  CHECK(status.in_flight == 7);
  wire::TextReader texts(reply.view().rest);
  CHECK(*texts.take(status.version_len) == "shmbrokerd test");
  CHECK(*texts.take(status.kernel_len) == "6.18");
  CHECK(*texts.take(status.engine_len) == "asked for");
  CHECK(*texts.take(status.losses_len) == "no pidfd\nno CAP_SYS_RESOURCE");
}

TEST_CASE("a watch for a name waits also while the group is not there, and tells what holds already") {
  World world;
  Client maker = world.client(1000), waiter = world.client(1000), other = world.client(2000);
  CHECK(waiter.watch_name("later", "n").fixed<shmbw_watch_reply>().state == 0);
  CHECK(other.watch_name("later", "n").status() == Status::ok);  // its own "later"
  CHECK(waiter.watch_name("", "n").status() == Status::not_found);
  CHECK(waiter.watch_name("#4711", "n").status() == Status::not_found);
  CHECK(waiter.watch_name("a/b", "n").status() == Status::invalid);
  CHECK(waiter.watch_name("later", "a/b").status() == Status::invalid);
  auto group = maker.make_group({.name = "later"}).fixed<shmbw_group_create_reply>().group;
  maker.create({.name = "m", .group = group});
  CHECK(waiter.link().events.empty());
  Created created = maker.create({.name = "n", .group = group});
  REQUIRE(waiter.link().events.size() == 1);
  Packet& event = waiter.link().events[0];
  auto fixed = event.fixed<shmbw_name_appeared_event>();
  CHECK(fixed.region.id == created.ref().id);
  CHECK(*wire::TextReader(event.view().rest).take(fixed.name_len) == "n");
  CHECK(event.view().header.tag == 0);
  CHECK(other.link().events.empty());
  CHECK(waiter.watch_name("later", "n").fixed<shmbw_watch_reply>().state == SHMBW_WATCH_EVENT_APPEARED);
  // Its successor appears, too.
  maker.create({.name = "n", .group = group, .flags = SHMBW_CREATE_REPLACE});
  CHECK(waiter.link().events.size() == 3);  // both subscriptions
  CHECK(waiter.link().events[2].fixed<shmbw_name_appeared_event>().sequence == 3);
}

TEST_CASE("a cancelled watch is silent, and cancelling twice or another's is an error") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  Created created = a.create();
  auto watch = a.watch_region(created.ref(), SHMBW_WATCH_EVENT_READY).fixed<shmbw_watch_reply>().watch;
  shmbw_watch cancel{};
  cancel.watch = watch;
  CHECK(b.call(SHMBW_OP_WATCH, cancel).status() == Status::not_found);
  CHECK(a.call(SHMBW_OP_WATCH, cancel).status() == Status::ok);
  CHECK(a.call(SHMBW_OP_WATCH, cancel).status() == Status::not_found);
  a.ready(created.ref());
  CHECK(a.link().events.empty());
}

TEST_CASE("only the events asked for come") {
  World world;
  Client a = world.client(1000);
  Created created = a.create();
  a.watch_region(created.ref(), SHMBW_WATCH_EVENT_PUBLISHED);
  a.ready(created.ref());
  CHECK(a.link().events.empty());
  a.publish(created.ref());
  CHECK(a.link().events.size() == 1);
  a.release(created.ref());
  CHECK(a.link().events.size() == 1);
  CHECK(a.status().watches == 0);
}

TEST_CASE("wrong words of a watch are refused") {
  World world;
  Client a = world.client(1000);
  Created created = a.create();
  CHECK(a.watch_region(created.ref(), 0).status() == Status::invalid);
  CHECK(a.watch_region(created.ref(), 1U << 20).status() == Status::unknown_flags);
  shmbw_watch strange{};
  strange.kind = 99;
  strange.events = 1;
  CHECK(a.call(SHMBW_OP_WATCH, strange).status() == Status::invalid);
  CHECK(a.watch_group(4711).status() == Status::not_found);
}

TEST_CASE("watches of a session are bounded and come back") {
  Config config = private_config();
  config.limits.session_watches = 2;
  World world(config);
  Client a = world.client(1000);
  Created created = a.create();
  a.watch_region(created.ref(), 1);
  a.watch_reclaims();
  Packet& refused = a.watch_reclaims();
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_WATCHES);
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_SESSION);
  a.release(created.ref());
  CHECK(a.watch_reclaims().status() == Status::ok);
}

TEST_CASE("an object has a limited number of subscriptions over all users, and room again when one is gone") {
  Config config = private_config();
  config.limits.target_watches = 3;
  World world(config);
  Client a = world.client(1000), b = world.client(1000), other = world.client(2000);
  Created created = a.create();
  const auto group = a.make_group({.name = "g"}).fixed<shmbw_group_create_reply>().group;
  const std::vector<std::function<Packet&(Client&)>> kinds = {
      [&](Client& who) -> Packet& { return who.watch_region(created.ref(), SHMBW_WATCH_EVENT_GONE); },
      [&](Client& who) -> Packet& { return who.watch_name("g", "n"); },
      [&](Client& who) -> Packet& { return who.watch_group(group); },
      [&](Client& who) -> Packet& { return who.watch_reclaims(); }};
  for (const auto& watch : kinds) {
    const auto first = watch(a).fixed<shmbw_watch_reply>().watch;
    CHECK(watch(b).status() == Status::ok);
    CHECK(watch(b).status() == Status::ok);
    Packet& refused = watch(a);
    CHECK(refused.status() == Status::limit);
    const Error error = refused.error();
    CHECK(error.shortage.slot == SHMBW_SLOT_WATCHES);
    CHECK(error.shortage.scope == SHMBW_SCOPE_WATCHED);
    CHECK(error.shortage.limit == 3);
    CHECK(error.shortage.used == 3);
    CHECK(error.shortage.asked == 1);
    CHECK(error.sentence.find("raise limits.target_watches") != std::string::npos);
    shmbw_watch cancel{};
    cancel.watch = first;
    CHECK(a.call(SHMBW_OP_WATCH, cancel).status() == Status::ok);
    CHECK(watch(a).status() == Status::ok);
  }
  // Another name, and another uid's reclaims, have their own.
  CHECK(a.watch_name("g", "m").status() == Status::ok);
  CHECK(other.watch_reclaims().status() == Status::ok);
  CHECK(other.watch_name("g", "n").status() == Status::ok);
  a.create({.name = "n", .group = group});
  CHECK(a.link().events.size() == 1);
  CHECK(b.link().events.size() == 2);
  CHECK(other.link().events.empty());
}

TEST_CASE("a watch of a group that is only kept tells that it has ended, and goes with it") {
  World world;
  Client a = world.client(1000), asker = world.client(1000);
  auto group = a.make_group({.name = "g", .keep = 10 * kSecond}).fixed<shmbw_group_create_reply>().group;
  a.join("g");
  a.create({.name = "n"});
  CHECK(asker.watch_group(group).fixed<shmbw_watch_reply>().state == 0);
  a.die();
  CHECK(asker.link().events.size() == 1);
  CHECK(asker.watch_group(group).fixed<shmbw_watch_reply>().state == SHMBW_WATCH_EVENT_ENDED);
  world.advance(10 * kSecond);
  CHECK(asker.status().watches == 0);
}

TEST_CASE("10,000 regions with a lease each cost at most 768 bytes of user space per region, with their records") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer counts its own bytes");
  World world;
  world.check_at_end = false;
  Client client = world.client(1000);
  auto fill = [&](int batches) {
    for (int i = 0; i < batches; ++i) {
      client.create_many(std::vector<CreateRequest>(200));
      client.link().replies.clear();
    }
  };
  fill(1);  // buffers of the client and of the reply have their size now
  std::size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  fill(50);
  std::size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
  std::size_t each = (after - before) / 10'000;
  // Their records, and the room in the journal for the end of both.
  constexpr std::size_t shared =
      sizeof(daemon::books::RegionRecord) + sizeof(daemon::books::LeaseRecord) + 2 * sizeof(daemon::books::EntryHead);
  MESSAGE("bytes per region: " << each << " and " << shared << " of the books");
  CHECK(each + shared <= 768);
}

TEST_CASE("in steady state no request allocates") {
  World world(system_config(), {}, false);
  Client writer = world.client(1000), reader = world.client(1000);
  const std::string name(90, 'n'), group(90, 'g');
  REQUIRE(writer.make_group({.name = group}).status() == Status::ok);
  REQUIRE(writer.join(group).status() == Status::ok);
  REQUIRE(reader.join(group).status() == Status::ok);
  auto round = [&] {
    Created created = writer.create({.name = name, .length = 5000});
    REQUIRE(created.status == Status::ok);
    REQUIRE(reader.attach_name(group, name).status == Status::ok);
    writer.ready(created.ref());
    REQUIRE(reader.attach_id(created.ref(), kWrite).status == Status::ok);
    REQUIRE(reader.release(created.ref()).status == Status::ok);
    REQUIRE(writer.publish(created.ref()).status() == Status::ok);
    REQUIRE(reader.attach_ticket(Client::ticket_of(writer.ticket(created.ref()))).status == Status::ok);
    REQUIRE(reader.release(created.ref()).status == Status::ok);
    REQUIRE(writer.release(created.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
    writer.status();
  };
  round();
  round();
  world.allocations = 0;
  for (int i = 0; i < 100; ++i) round();
  CHECK(world.allocations == 0);
  writer.create({.length = UINT64_MAX});  // the counter counts: a refusal makes its sentence
  CHECK(world.allocations > 0);
}
