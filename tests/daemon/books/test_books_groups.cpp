// SPDX-License-Identifier: Apache-2.0
// Life and end of groups: members, heirs, supervisors, keep clocks, every order of death.
#include <algorithm>
#include <numeric>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;
using shmb::daemon::Peer;

namespace {

shmbw_group_record row_of(Client& asker, std::uint64_t group) {
  shmbw_list wish{};
  wish.group = group;
  auto rows = asker.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS, wish);
  return rows.empty() ? shmbw_group_record{} : rows.front();
}

std::uint64_t made(Packet& reply) {
  REQUIRE(reply.status() == Status::ok);
  return reply.fixed<shmbw_group_create_reply>().group;
}

std::size_t events_of(Client& client, std::uint16_t op) {
  return static_cast<std::size_t>(std::ranges::count_if(
      client.link().events, [&](const Packet& packet) { return packet.op() == (op | SHMBW_EVENT); }));
}

}  // namespace

TEST_CASE("an unnamed group is made by the first create and ends with its last member") {
  World world;
  Client asker = world.client(1000);
  Client client = world.client(1000);
  CHECK(asker.status().groups == 0);
  Created created = client.create();
  Created second = client.create();
  CHECK(created.reply.group == second.reply.group);
  CHECK(row_of(asker, created.reply.group).members == 1);
  client.close();
  CHECK(asker.status().groups == 0);
}

TEST_CASE("a group's row names the time at which it was made") {
  World world;
  Client client = world.client(1000);
  const std::uint64_t first = made(client.make_group({.name = "first"}));
  world.advance(5'000'000'000);
  const std::uint64_t second = made(client.make_group({.name = "second"}));
  world.advance(5'000'000'000);
  CHECK(row_of(client, second).created - row_of(client, first).created == 5'000'000'000);
}

TEST_CASE("all 120 orders of death of 5 members end the group with the last one, and only then") {
  std::vector<int> order(5);
  std::iota(order.begin(), order.end(), 0);
  int orders = 0;
  do {
    World world;
    Client watcher = world.client(1000);
    std::vector<Client> members;
    auto group = made(watcher.make_group({.name = "job"}));
    for (int i = 0; i < 5; ++i) {
      members.push_back(world.client(1000));
      REQUIRE(members.back().join("job").status() == Status::ok);
    }
    Created named = members[0].create({.name = "n"});
    std::vector<Created> own;
    for (Client& member : members) {
      own.push_back(member.create());
      REQUIRE(member.attach_id(named.ref(), kWrite).status == Status::ok);
    }
    watcher.watch_group(group);
    for (std::size_t i = 0; i < 5; ++i) {
      auto status = watcher.status();
      REQUIRE(status.regions == 6 - i);
      REQUIRE(row_of(watcher, group).members == 5 - i);
      REQUIRE(events_of(watcher, SHMBW_EVENT_GROUP_ENDED) == 0);
      members[static_cast<std::size_t>(order[i])].die();
    }
    REQUIRE(watcher.status().regions == 0);
    REQUIRE(watcher.status().groups == 0);
    REQUIRE(watcher.status().leases == 0);
    REQUIRE(events_of(watcher, SHMBW_EVENT_GROUP_ENDED) == 1);
    ++orders;
  } while (std::ranges::next_permutation(order).found);
  CHECK(orders == 120);
}

TEST_CASE("a group that no session ever joined lives as long as the session that made it") {
  World world;
  Client asker = world.client(1000), founder = world.client(1000);
  auto group = made(founder.make_group({.name = "g"}));
  CHECK(founder.create({.name = "n", .group = group}).status == Status::ok);
  CHECK(asker.attach_name("g", "n", kWrite).status == Status::ok);
  founder.close();
  CHECK(asker.attach_name("g", "n", kWrite).status == Status::not_found);
  CHECK(asker.status().regions == 1);  // the foreign lease outlives the group's end
  CHECK(asker.status().groups == 1);   // and is still charged to it
  auto row = row_of(asker, group);
  CHECK((row.flags & SHMBW_GROUP_STATE_ENDED) != 0);
  CHECK((row.flags & SHMBW_GROUP_STATE_KEPT) == 0);
  CHECK(row.bytes == 4096);
  CHECK(asker.create({.group = group}).status == Status::group_ended);
  CHECK(asker.join("g").status() == Status::not_found);
  CHECK(made(asker.make_group({.name = "g"})) != group);  // the name is free again
}

TEST_CASE("only its maker can give up a group that no session has joined") {
  World world;
  Client founder = world.client(1000), other = world.client(1000);
  auto first = made(founder.make_group({.name = "first"}));
  auto second = made(founder.make_group({.name = "second"}));
  CHECK(other.leave(first).status() == Status::not_found);
  CHECK(founder.leave(first).fixed<shmbw_group_leave_reply>().group == 0);
  CHECK(other.join("first").status() == Status::not_found);
  CHECK(founder.leave(first).status() == Status::not_found);
  CHECK(row_of(other, second).group == second);
  // Once it is joined, leaving is the member's.
  REQUIRE(other.join("second").status() == Status::ok);
  CHECK(founder.leave(second).status() == Status::not_found);
  CHECK(other.leave(second).status() == Status::ok);
  CHECK(founder.status().groups == 0);
}

TEST_CASE("once a session has joined, the maker no longer holds the group") {
  World world;
  Client founder = world.client(1000), member = world.client(1000);
  auto group = made(founder.make_group({.name = "g"}));
  member.join("g");
  member.die();
  CHECK(row_of(founder, group).group == 0);
}

TEST_CASE("leaving and joining another group end the one that was left last, and foreign leases stay") {
  World world;
  Client a = world.client(1000);
  made(a.make_group({.name = "one"}));
  made(a.make_group({.name = "two"}));
  CHECK(a.join("one").status() == Status::ok);
  Created named = a.create({.name = "n"});
  Created unnamed = a.create();
  CHECK(a.join("two").status() == Status::ok);
  CHECK(a.attach_name("one", "n", kWrite).status == Status::not_found);
  CHECK(a.status().regions == 2);  // both still leased
  CHECK(a.release(named.ref()).status == Status::ok);
  CHECK(a.release(unnamed.ref()).status == Status::ok);
  CHECK(a.status().groups == 1);
  CHECK(a.leave().fixed<shmbw_group_leave_reply>().group == 0);
  CHECK(a.status().groups == 0);
  CHECK(a.leave(4711).status() == Status::not_found);
}

TEST_CASE("keep 0 frees named regions at the end, a duration after it, -1 not at all") {
  World world;
  Client asker = world.client(1000), client = world.client(1000);
  auto group = made(client.make_group({.name = "g", .keep = 10 * kMinute}));
  client.join("g");
  client.create({.name = "default"});
  client.create({.name = "none", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 0});
  client.create({.name = "long", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 60 * kMinute});
  client.create({.name = "ever", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -1});
  client.create();
  asker.watch_group(group);
  client.die();
  CHECK(asker.status().regions == 3);
  CHECK(events_of(asker, SHMBW_EVENT_GROUP_ENDED) == 1);
  CHECK(asker.link().events.back().fixed<shmbw_group_ended_event>().bytes_freed == 4096);
  auto row = row_of(asker, group);
  CHECK((row.flags & SHMBW_GROUP_STATE_KEPT) != 0);
  for (const auto& region : asker.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS)) {
    CHECK((region.flags & SHMBW_REGION_KEPT) != 0);
    CHECK(region.freed_at == (region.keep < 0 ? 0 : world.now + region.keep));
  }
  CHECK(world.books->next_deadline() <= world.now + 10 * kMinute);
  world.advance(10 * kMinute - 1);
  CHECK(asker.status().regions == 3);
  world.advance(1);
  CHECK(asker.status().regions == 2);
  CHECK(asker.attach_name("g", "default", kWrite).status == Status::not_found);
  world.advance(50 * kMinute);
  CHECK(asker.status().regions == 1);
  world.advance(365LL * 24 * 60 * kMinute);
  CHECK(asker.status().regions == 1);
  CHECK(!world.books->idle());
  auto ever = asker.attach_name("g", "ever", kWrite | SHMBW_RIGHT_RELEASE);
  REQUIRE(ever.status == Status::ok);
  CHECK(asker.release(ever.reply.region, 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
  CHECK(asker.status().groups == 0);
}

TEST_CASE("the keep clock starts when the last member leaves, and a join restarts it") {
  World world;
  Client asker = world.client(1000);
  auto group = made(asker.make_group({.name = "g", .keep = 10 * kMinute}));
  {
    Client first = world.client(1000);
    first.join("g");
    first.create({.name = "n"});
    world.advance(kMinute);
    first.die();
  }
  world.advance(9 * kMinute);
  Client second = world.client(1000);
  CHECK(second.join("g").fixed<shmbw_group_join_reply>().group == group);
  CHECK((row_of(asker, group).flags & SHMBW_GROUP_STATE_ENDED) == 0);
  world.advance(60 * kMinute);
  CHECK(asker.status().regions == 1);
  second.die();
  world.advance(10 * kMinute - 1);
  CHECK(asker.status().regions == 1);
  world.advance(1);
  CHECK(asker.status().regions == 0);
  CHECK(asker.status().groups == 0);
}

TEST_CASE("a second put into a kept group revives it: adopt, create, and the clock restarts at its end") {
  World world;
  Client asker = world.client(1000);
  auto put = [&](const char* name) {
    Client tool = world.client(1000);
    auto group =
        made(tool.make_group({.name = "shell-1000", .flags = SHMBW_GROUP_ADOPT_EXISTING, .keep = 10 * kMinute}));
    CHECK(tool.create({.name = name, .group = group}).status == Status::ok);
    tool.close();
    return group;
  };
  auto first = put("a");
  world.advance(8 * kMinute);
  CHECK(put("b") == first);
  world.advance(8 * kMinute);
  CHECK(asker.status().regions == 2);
  world.advance(2 * kMinute);
  CHECK(asker.status().regions == 0);
  CHECK(put("c") != first);
}

TEST_CASE("foreign leases and tickets outlive keep, and the region goes with the last of them") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  made(owner.make_group({.name = "g", .keep = kMinute}));
  owner.join("g");
  Created created = owner.create({.name = "n"});
  auto first = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  auto second = Client::ticket_of(owner.ticket(created.ref(), kWrite, 1, 5 * kMinute));
  CHECK(guest.attach_ticket(first, kWrite).status == Status::ok);
  owner.die();
  world.advance(2 * kMinute);
  CHECK(guest.status().regions == 1);
  CHECK(guest.release(created.ref()).status == Status::ok);
  CHECK(guest.status().regions == 1);  // the second ticket
  CHECK(guest.attach_ticket(second, kWrite).status == Status::ok);
  CHECK(guest.release(created.ref()).status == Status::ok);
  CHECK(guest.status().regions == 0);
  CHECK(guest.status().groups == 0);
}

TEST_CASE("end by the owner: members lose the group, keep their leases, and create in it is group_ended") {
  World world;
  Client owner = world.client(1000), member = world.client(1000);
  auto group = made(owner.make_group({.name = "g"}));
  member.join("g");
  Created leased = member.create({.name = "leased"});
  Created kept = member.create({.name = "kept", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -1});
  Created loose = member.create({.name = "loose"});
  member.release(loose.ref());
  member.release(kept.ref());
  auto reply = owner.end_group(group).fixed<shmbw_group_end_reply>();
  CHECK(reply.members == 1);
  CHECK(reply.bytes_freed == 4096);
  CHECK(reply.regions == 2);
  CHECK(member.create().status == Status::group_ended);
  CHECK(member.attach_id(leased.ref(), kWrite).status == Status::ok);
  CHECK(member.attach_name("g", "kept", kWrite).status == Status::ok);
  CHECK(member.attach_name("g", "leased", kWrite).status == Status::not_found);
  member.release(kept.ref());
  auto again = owner.end_group(group, SHMBW_END_RELEASE_KEPT).fixed<shmbw_group_end_reply>();
  CHECK(again.bytes_freed == 4096);
  CHECK(owner.end_group(group).status() == Status::group_ended);  // held by the lease only
  CHECK(member.leave().status() == Status::ok);
  CHECK(member.create().status == Status::ok);
}

TEST_CASE("freeing what a group keeps does not end a live group: its members are named") {
  World world;
  Client owner = world.client(1000, 41), member = world.client(1000, 42);
  const auto group = owner.make_group({.name = "g"}).fixed<shmbw_group_create_reply>().group;
  constexpr std::uint32_t kKept = SHMBW_END_RELEASE_KEPT | SHMBW_END_KEPT_ONLY;
  const auto refused = [&](const std::string& words) {
    Packet& reply = owner.end_group(group, kKept);
    CHECK(reply.status() == Status::busy);
    CHECK_MESSAGE(reply.error().sentence.find(words) != std::string::npos, reply.error().sentence);
  };
  refused("pid 41");  // no session has joined: its maker holds it
  member.join("g");
  Created kept = member.create({.name = "kept", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -1});
  refused("1 session holds it: pid 42");
  CHECK(owner.attach_name("g", "kept", kWrite).status == Status::ok);
  owner.release(kept.ref());
  for (int i = 0; i < 3; ++i) owner.end_group(group, kKept);
  CHECK(member.create({.name = "still"}).status == Status::ok);
  member.leave();
  member.release(kept.ref());
  auto ended = owner.end_group(group, kKept).fixed<shmbw_group_end_reply>();
  CHECK(ended.members == 0);
  CHECK(ended.bytes_freed == 4096);
}

TEST_CASE("a session that may not end a group is denied, or learns nothing") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000), stranger = world.client(3000);
  Packet& reply = owner.make_group({.name = "g"});
  auto fixed = reply.fixed<shmbw_group_create_reply>();
  CHECK(guest.join(fixed.token).status() == Status::ok);
  CHECK(guest.end_group(fixed.group).status() == Status::denied);
  CHECK(owner.end_group(fixed.group, SHMBW_END_TREE_GONE).status() == Status::denied);
  CHECK(stranger.end_group(fixed.group).status() == Status::not_found);
  CHECK(stranger.end_group(0).status() == Status::not_found);
  CHECK(owner.end_group(fixed.group, 0x100).status() == Status::unknown_flags);
}

TEST_CASE("a group's limit can be lowered below what it uses: that frees nothing and refuses new regions") {
  Config config;
  config.limits.group_bytes = 16 * 4096;
  World world(config);
  Client owner = world.client(1000), guest = world.client(2000), stranger = world.client(3000), admin = world.admin();
  const auto fixed = owner.make_group({.name = "g"}).fixed<shmbw_group_create_reply>();
  REQUIRE(owner.join("g").status() == Status::ok);
  REQUIRE(guest.join(fixed.token).status() == Status::ok);
  Created first = owner.create({.length = 8 * 4096});
  REQUIRE(first.status == Status::ok);

  const auto set = [&](Client& client, std::uint64_t bytes) {
    Packet& reply = client.limit_group(fixed.group, bytes);
    REQUIRE(reply.status() == Status::ok);
    return reply.fixed<shmbw_group_limit_reply>();
  };
  const auto lowered = set(owner, 4096);
  CHECK(lowered.group == fixed.group);
  CHECK(lowered.bytes == 4096);
  CHECK(lowered.before == 16 * 4096);
  CHECK(lowered.used == 8 * 4096);
  CHECK(row_of(owner, fixed.group).bytes == 8 * 4096);
  const Created refused = owner.create();
  CHECK(refused.status == Status::limit);
  CHECK(refused.error.shortage.limit == 4096);
  CHECK(refused.error.sentence.find("raise the group's limit: `shmbroker limit ") != std::string::npos);
  CHECK(owner.release(first.ref()).status == Status::ok);
  CHECK(owner.create().status == Status::ok);  // there is room again below the new limit

  const Packet& above = owner.limit_group(fixed.group, 17 * 4096);
  CHECK(above.status() == Status::limit);
  CHECK(above.error().shortage.limit == 16 * 4096);
  CHECK(above.error().shortage.used == 4096);
  CHECK(above.error().shortage.asked == 17 * 4096);
  CHECK(set(owner, 0).before == 4096);  // what was refused has changed nothing
  CHECK(set(owner, 16 * 4096).before == 16 * 4096);
  CHECK(set(admin, 32 * 4096).bytes == 32 * 4096);
  CHECK(owner.create({.length = 20 * 4096}).status == Status::ok);
  CHECK(set(owner, 0).bytes == 16 * 4096);

  CHECK(guest.limit_group(fixed.group, 4096).status() == Status::denied);
  CHECK(stranger.limit_group(fixed.group, 4096).status() == Status::not_found);
  CHECK(owner.limit_group(0, 4096).status() == Status::not_found);
}

TEST_CASE("a supervised group ends when no member is left and the supervisor reports the tree gone") {
  World world;
  Client run = world.client(1000), member = world.client(1000);
  auto group = made(run.make_group({.name = "job", .flags = SHMBW_GROUP_SUPERVISED}));
  CHECK(run.join("job", SHMBW_JOIN_SUPERVISOR).fixed<shmbw_group_join_reply>().group == group);
  member.join("job");
  member.create({.name = "n"});
  auto row = row_of(run, group);
  CHECK(row.members == 1);
  CHECK(row.supervisors == 1);
  SUBCASE("members first") {
    member.die();
    CHECK(run.status().regions == 1);  // processes that never met the broker may still come
    auto reply = run.end_group(group, SHMBW_END_TREE_GONE).fixed<shmbw_group_end_reply>();
    CHECK(reply.members == 0);
    CHECK(reply.bytes_freed == 4096);
    CHECK(run.status().groups == 0);
  }
  SUBCASE("report first") {
    auto reply = run.end_group(group, SHMBW_END_TREE_GONE).fixed<shmbw_group_end_reply>();
    CHECK(reply.members == 1);
    CHECK(reply.regions == 1);
    CHECK(run.status().regions == 1);
    member.die();
    CHECK(run.status().groups == 0);
  }
  SUBCASE("all supervisors die without a report: members count, and the list says so") {
    Client second = world.client(1000);
    second.join("job", SHMBW_JOIN_SUPERVISOR);
    run.die();
    CHECK((row_of(second, group).flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST) == 0);
    second.die();
    Client asker = world.client(1000);
    auto lost = row_of(asker, group);
    CHECK((lost.flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST) != 0);
    CHECK(lost.members == 1);
    member.die();
    CHECK(asker.status().groups == 0);
  }
  SUBCASE("the last supervisor dies with no member left: the group ends") {
    member.die();
    run.die();
    Client asker = world.client(1000);
    CHECK(asker.status().groups == 0);
  }
  SUBCASE("a supervisor's pidfd counts even while a child holds its socket") {
    member.die();
    run.pidfd();
    Client asker = world.client(1000);
    CHECK(asker.status().groups == 0);
  }
  SUBCASE("one session supervises one group at a time") {
    made(member.make_group({.name = "other"}));
    CHECK(run.join("other", SHMBW_JOIN_SUPERVISOR).status() == Status::busy);
    CHECK(run.leave(group).status() == Status::ok);
    CHECK(run.join("other", SHMBW_JOIN_SUPERVISOR).status() == Status::ok);
  }
}

TEST_CASE("a token admits another uid, which then may use the group as a member") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  auto fixed = owner.make_group({.name = "g"}).fixed<shmbw_group_create_reply>();
  owner.join("g");
  Created created = owner.create({.name = "n"});
  CHECK(guest.join("g", 0, 1000).status() == Status::not_found);
  CHECK(guest.join(fixed.token).status() == Status::ok);
  CHECK(guest.attach_name("", "n", kWrite).status == Status::ok);
  CHECK(guest.attach_name("g", "n", kWrite, 1000).status == Status::ok);
  CHECK(guest.attach_id(created.ref(), kWrite).status == Status::ok);
  Created theirs = guest.create({.name = "m"});
  CHECK(theirs.reply.group == fixed.group);
  // Paid by the group's owner, whoever made it.
  CHECK(owner.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS).at(0).bytes == 8192);
  CHECK(guest.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS).at(0).bytes == 0);
  guest.leave();
  CHECK(guest.attach_name("g", "n", kWrite, 1000).status == Status::not_found);
  fixed.token[0] ^= 1;
  CHECK(guest.join(fixed.token).status() == Status::not_found);
}

TEST_CASE("the token of an ended group says so") {
  World world;
  Client owner = world.client(1000), holder = world.client(1000), guest = world.client(2000);
  auto fixed = owner.make_group({.name = "g"}).fixed<shmbw_group_create_reply>();
  owner.join("g");
  Created created = owner.create();
  holder.attach_id(created.ref(), kWrite);
  owner.die();
  CHECK(guest.join(fixed.token).status() == Status::group_ended);
  Client late = world.silent(2000);
  HelloRequest wish;
  std::memcpy(wish.group_token.data(), fixed.token, 16);
  CHECK(late.hello(wish).status() == Status::group_ended);
  CHECK(late.hello().status() == Status::ok);
}

TEST_CASE("wrong words of group requests are refused") {
  World world;
  Client client = world.client(1000);
  CHECK(client.make_group({.name = "a/b"}).status() == Status::invalid);
  CHECK(client.make_group({.flags = 0x40}).status() == Status::unknown_flags);
  CHECK(client.make_group({.keep = -5}).status() == Status::invalid);
  CHECK(client.make_group({.keep = 8LL * 24 * 60 * kMinute}).status() == Status::limit);
  made(client.make_group({.name = "g"}));
  CHECK(client.make_group({.name = "g"}).status() == Status::exists);
  CHECK(client.join("").status() == Status::invalid);
  CHECK(client.join("g", 0x40).status() == Status::unknown_flags);
  CHECK(client.join("h").status() == Status::not_found);
  CHECK(client.join("#4711").status() == Status::not_found);
}

TEST_CASE("groups of a uid are bounded, by name of the key, and come back") {
  Config config = private_config();
  config.limits.uid_groups = 2;
  World world(config);
  Client client = world.client(1000);
  auto first = made(client.make_group());
  made(client.make_group());
  Packet& refused = client.make_group();
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_GROUPS);
  CHECK(client.create().status == Status::limit);  // its own unnamed group is one, too
  client.end_group(first);
  made(client.make_group());
}

TEST_CASE("unnamed groups are addressed by @id within their uid, and by #id as before") {
  World world;
  Client a = world.client(1000), b = world.client(1000), other = world.client(2000);
  Created created = a.create({.name = "n"});
  std::string text = "@" + std::to_string(created.reply.group);
  CHECK(b.attach_name("#" + std::to_string(created.reply.group), "n", kWrite).status == Status::ok);
  CHECK(b.attach_name(text, "n", kWrite).status == Status::ok);
  CHECK(other.attach_name(text, "n", kWrite).status == Status::not_found);
  CHECK(other.attach_name(text, "n", kWrite, 1000).status == Status::not_found);
  CHECK(b.join(text).status() == Status::ok);
}

TEST_CASE("an heir keeps its parent's leases and group alive until the end of the file") {
  World world;
  Client asker = world.client(1000), parent = world.client(1000);
  Created created = parent.create({.name = "n"});
  parent.pidfd();
  auto row = row_of(asker, created.reply.group);
  CHECK(row.members == 0);
  CHECK(row.heirs == 1);
  for (const auto& session : asker.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS))
    if (session.session == parent.id) CHECK(session.state == SHMBW_SESSION_STATE_HEIR);
  CHECK(asker.attach_id(created.ref(), kWrite).status == Status::ok);
  // The forked child's first call makes it a session of its own, and its parent's leases can go.
  Client child = world.silent(1000);
  REQUIRE(child.hello({.fork_session = parent.id, .fork_secret = parent.secret}).status() == Status::ok);
  CHECK(child.group == created.reply.group);
  CHECK(child.inherit(created.ref()).status == Status::ok);
  parent.end_of_file();
  parent.forget();
  CHECK(row_of(asker, created.reply.group).members == 1);
  CHECK(child.create({.name = "m"}).status == Status::ok);
  child.die();
  CHECK(row_of(asker, created.reply.group).group == created.reply.group);  // the asker's lease
  CHECK((row_of(asker, created.reply.group).flags & SHMBW_GROUP_STATE_ENDED) != 0);
}

TEST_CASE("a request on an heir's socket is answered as the session whose descriptors it has") {
  World world;
  Client parent = world.client(1000);
  Created created = parent.create();
  parent.pidfd();
  CHECK(parent.release(created.ref()).status == Status::ok);
  CHECK(parent.status().regions == 0);
}

TEST_CASE("a lazy reader that was disconnected keeps its leases until its pidfd is readable") {
  World world;
  Client asker = world.client(1000), lazy = world.client(1000);
  Created created = lazy.create({.name = "n"});
  lazy.watch_reclaims();
  lazy.disconnect();
  CHECK(asker.status().regions == 1);
  CHECK(asker.status().watches == 0);
  CHECK(row_of(asker, created.reply.group).heirs == 1);
  world.advance(365LL * 24 * 60 * kMinute);  // never a time-out
  CHECK(asker.status().regions == 1);
  lazy.pidfd();
  CHECK(asker.status().regions == 0);
  CHECK(asker.status().groups == 0);
  lazy.forget();
}

TEST_CASE("a disconnected process takes its leases over with its secret, and no other process can") {
  World world;
  Client asker = world.client(1000);
  Client lazy = world.client(1000, 77);
  Created created = lazy.create();
  lazy.disconnect();
  Client imposter = world.silent(2000, 77);
  imposter.hello({.fork_session = lazy.id, .fork_secret = lazy.secret});
  CHECK(imposter.release(created.ref()).status == Status::not_found);
  imposter.close();
  Client back = world.silent(1000, 77);
  REQUIRE(back.hello({.fork_session = lazy.id, .fork_secret = lazy.secret}).status() == Status::ok);
  CHECK(back.group == created.reply.group);
  lazy.pidfd();  // what the transport still tells of the old connection does not matter any more
  lazy.forget();
  CHECK(asker.status().regions == 1);
  CHECK(asker.status().leases == 1);
  CHECK(back.release(created.ref()).status == Status::ok);
  for (const std::string& line : world.log) CHECK(line.find("reclaim") == line.npos);
}

TEST_CASE("a session without pidfd ends with its file only") {
  World world;
  Client asker = world.client(1000);
  Client remote = world.silent(1000, 5, false);
  remote.hello();
  remote.create();
  remote.disconnect();  // nothing else would ever tell its end
  CHECK(asker.status().regions == 0);
  remote.forget();
}

TEST_CASE("an older kernel's pidfd of another process is given up for the end of the file") {
  World world;
  Client client = world.silent(1000);
  client.link().start_time_right = false;
  CHECK(client.hello({.start_time = 42}).status() == Status::ok);
  CHECK(client.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS).at(0).death_by == 1);
}

TEST_CASE("a supervisor of another uid addresses the group it supervises") {
  World world;
  Client owner = world.client(1000), guard = world.client(2000), member = world.client(1000);
  auto fixed = owner.make_group({.name = "job"}).fixed<shmbw_group_create_reply>();
  REQUIRE(guard.join(fixed.token, SHMBW_JOIN_SUPERVISOR).status() == Status::ok);
  member.join("job");
  CHECK(row_of(guard, fixed.group).members == 1);
  CHECK(guard.watch_group(fixed.group).status() == Status::ok);
  CHECK(guard.end_group(fixed.group, SHMBW_END_TREE_GONE).status() == Status::ok);
}

TEST_CASE("a revived group is as new: its tree is not gone and no supervisor of it is lost") {
  World world;
  Client asker = world.client(1000), run = world.client(1000);
  auto group = made(run.make_group({.name = "job", .flags = SHMBW_GROUP_SUPERVISED, .keep = kMinute}));
  run.join("job", SHMBW_JOIN_SUPERVISOR);
  {
    Client member = world.client(1000);
    member.join("job");
    member.create({.name = "n"});
    member.die();
  }
  SUBCASE("after a report") { run.end_group(group, SHMBW_END_TREE_GONE); }
  SUBCASE("after the supervisor's death") { run.die(); }
  REQUIRE((row_of(asker, group).flags & SHMBW_GROUP_STATE_KEPT) != 0);
  Client again = world.client(1000), member = world.client(1000);
  REQUIRE(again.join("job", SHMBW_JOIN_SUPERVISOR).status() == Status::ok);
  CHECK((row_of(asker, group).flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST) == 0);
  member.join("job");
  member.die();
  CHECK((row_of(asker, group).flags & SHMBW_GROUP_STATE_ENDED) == 0);  // the new supervisor holds it
}

TEST_CASE("the maker's hold outlives the regions that come and go") {
  World world;
  Client founder = world.client(1000);
  auto group = made(founder.make_group({.name = "g"}));
  Created created = founder.create({.group = group});
  founder.release(created.ref());
  CHECK((row_of(founder, group).flags & SHMBW_GROUP_STATE_ENDED) == 0);
  CHECK(founder.create({.group = group}).status == Status::ok);
}

TEST_CASE("a create by id revives a kept group until its session ends") {
  World world;
  Client asker = world.client(1000), founder = world.client(1000);
  auto group = made(founder.make_group({.name = "g", .keep = kMinute}));
  {
    Client member = world.client(1000);
    member.join("g");
    member.create({.name = "n"});
    member.die();
  }
  Client tool = world.client(1000);
  CHECK(tool.create({.name = "m", .group = group}).status == Status::ok);
  world.advance(10 * kMinute);
  CHECK(asker.status().regions == 2);
  tool.close();
  world.advance(kMinute);
  CHECK(asker.status().regions == 0);
}

TEST_CASE("taking the last name out of a kept group closes it, also while others hold the region") {
  World world;
  Client asker = world.client(1000), guest = world.client(2000);
  auto group = made(asker.make_group({.name = "g", .keep = kMinute}));
  Created created;
  {
    Client member = world.client(1000);
    member.join("g");
    created = member.create({.name = "n"});
    guest.attach_ticket(Client::ticket_of(member.ticket(created.ref(), kWrite)), kWrite);
    member.die();
  }
  CHECK(asker.release(created.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
  CHECK((row_of(asker, group).flags & SHMBW_GROUP_STATE_KEPT) == 0);
  CHECK(made(asker.make_group({.name = "g"})) != group);
  CHECK(guest.status().regions == 1);
}

TEST_CASE("processes whose pid cannot be seen are never taken for one another") {
  World world;
  Client asker = world.client(1000);
  auto hidden = [&] {
    Peer peer;
    peer.uid = 1000;
    peer.has_pidfd = true;
    return Client(world, peer);
  };
  Client lazy = hidden();
  lazy.hello();
  Created created = lazy.create();
  lazy.disconnect();
  Client other = hidden();
  REQUIRE(other.hello({.fork_session = lazy.id, .fork_secret = lazy.secret}).status() == Status::ok);
  CHECK(asker.status().leases == 1);
  CHECK(other.release(created.ref()).status == Status::not_found);
  lazy.pidfd();
  lazy.forget();
  CHECK(asker.status().regions == 0);
}

TEST_CASE("an heir that does not read is at its end when it is disconnected") {
  World world;
  Client asker = world.client(1000), parent = world.client(1000);
  parent.create();
  parent.pidfd();
  parent.disconnect();
  CHECK(asker.status().regions == 0);
  parent.forget();
}

TEST_CASE("a session that makes and ends groups for ever keeps nothing of them") {
  World world;
  Client client = world.client(1000);
  for (int i = 0; i < 5000; ++i) {
    client.link().replies.clear();
    auto group = made(client.make_group());
    REQUIRE(client.end_group(group).status() == Status::ok);
  }
  CHECK(client.status().groups == 0);
}

TEST_CASE("a supervisor's forked child is one of the job") {
  World world;
  Client run = world.client(1000);
  auto group = made(run.make_group({.name = "job", .flags = SHMBW_GROUP_SUPERVISED}));
  run.join("job", SHMBW_JOIN_SUPERVISOR);
  Client rank = world.silent(1000);
  REQUIRE(rank.hello({.fork_session = run.id, .fork_secret = run.secret}).status() == Status::ok);
  CHECK(rank.group == group);
  CHECK(run.status().groups == 1);
}
