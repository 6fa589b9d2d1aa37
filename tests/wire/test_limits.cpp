// SPDX-License-Identifier: Apache-2.0
// Every limit, asked one past its end: the refusal names limit, scope, used and asked in numbers and in the sentence,
// says which key to raise, charges nothing, and what was refused succeeds once there is room.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/harness/skip.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

struct Expected {
  std::uint16_t slot, scope;
  std::uint64_t limit, used, asked;
  std::string key;  // what the sentence says to raise
};

const std::string kGroupOfItsOwn = "raise the group's limit: `shmbroker limit ";  // no key of the configuration

// The key that a sentence tells to raise has to be one that the broker takes.
bool is_a_key(const std::string& sentence) {
  std::size_t at = sentence.find("raise ");
  if (at == std::string::npos) return false;
  at += 6;
  std::string key = sentence.substr(at, sentence.find_first_of(" ;,", at) - at);
  harness::TempDir folder;
  for (const char* value : {"100000", "\"100M\""}) {
    std::ofstream(folder.file("config.toml")) << key << " = " << value << "\n";
    std::string command =
        "'" + BrokerFixture::program() + "' --check --config '" + folder.file("config.toml") + "' >/dev/null 2>&1";
    if (std::system(command.c_str()) == 0) return true;
  }
  return false;
}

void check_limit(const shmb::Error& error, const Expected& expected, shmb::Status status = shmb::Status::limit) {
  INFO(error.sentence);
  CHECK(error.status == status);
  CHECK(wrong_with_sentence(error) == "");
  CHECK(error.shortage.slot == expected.slot);
  CHECK(error.shortage.scope == expected.scope);
  CHECK(error.shortage.limit == expected.limit);
  CHECK(error.shortage.used == expected.used);
  CHECK(error.shortage.asked == expected.asked);
  CHECK(error.sentence.find(expected.key) != std::string::npos);
  if (error.sentence.find(kGroupOfItsOwn) == std::string::npos) CHECK(is_a_key(error.sentence));
}

shmb::Error refused_create(RawClient& client, const shmbw_create& wish, std::string_view name = {}) {
  shmbw_create create = wish;
  create.name_len = static_cast<std::uint16_t>(name.size());
  return error_of_element(client.call_batch(SHMBW_OP_CREATE, one(create), name));
}

shmbw_create sized_in(std::uint64_t length, std::uint64_t group = 0) {
  shmbw_create create{};
  create.length = length;
  create.group = group;
  return create;
}

void release(RawClient& client, const shmbw_region_ref& ref, std::uint32_t flags = 0) {
  ok_element<shmbw_release_reply>(client, SHMBW_OP_RELEASE, shmbw_release{ref, 0, flags});
}

const std::string kUid = std::to_string(::getuid());

}  // namespace

TEST_CASE("bytes are limited per host, uid and group, and each refusal names its key") {
  BrokerOptions options;
  options.config =
      "[limits]\nbytes = \"1M\"\nuid_bytes = \"512K\"\ngroup_bytes = \"256K\"\n[limits.group.small]\nbytes = \"64K\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    const std::uint64_t k = 1024;
    auto held = create_region(client, 200 * k);
    check_limit(refused_create(client, sized_in(60 * k)),
                {SHMBW_SLOT_BYTES, SHMBW_SCOPE_GROUP, 256 * k, 200 * k, 60 * k, "raise limits.group_bytes"});
    CHECK(books_of(broker).bytes == 200 * k);
    CHECK(create_region(client, 56 * k).bytes == 56 * k);

    RawClient second = greeted(broker), third = greeted(broker);
    create_region(second, 256 * k);
    check_limit(refused_create(third, sized_in(1)),
                {SHMBW_SLOT_BYTES, SHMBW_SCOPE_UID, 512 * k, 512 * k, 4 * k, "raise limits.uid." + kUid + ".bytes"});
    release(client, held.region);
    create_region(third, 1);

    shmbw_group_create small{};
    small.name_len = 5;
    auto group = third.call(SHMBW_OP_GROUP_CREATE, small, "small").fixed<shmbw_group_create_reply>();
    check_limit(refused_create(third, sized_in(68 * k, group.group)),
                {SHMBW_SLOT_BYTES, SHMBW_SCOPE_GROUP, 64 * k, 0, 68 * k, "limits.group.small.bytes"});
    create_region(third, sized_in(64 * k, group.group));
    shmbw_group_create wished{};
    wished.limit_bytes = 8 * k;
    auto own = third.call(SHMBW_OP_GROUP_CREATE, wished).fixed<shmbw_group_create_reply>();
    check_limit(refused_create(third, sized_in(9 * k, own.group)),
                {SHMBW_SLOT_BYTES, SHMBW_SCOPE_GROUP, 8 * k, 0, 12 * k, kGroupOfItsOwn});
  });
}

TEST_CASE("the host's bytes are limited when a uid may have more than that") {
  BrokerOptions options;
  options.config = "[limits]\nbytes = \"128K\"\nuid_bytes = \"1G\"\ngroup_bytes = \"1G\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    create_region(client, 100 * 1024);
    check_limit(refused_create(client, sized_in(32 * 1024)),
                {SHMBW_SLOT_BYTES, SHMBW_SCOPE_HOST, 128 * 1024, 100 * 1024, 32 * 1024, "raise limits.bytes"});
  });
}

TEST_CASE("the tables of regions, leases, names, groups, tickets, watches and sessions are limited") {
  BrokerOptions options;
  options.config =
      "[limits]\nuid_regions = 3\nuid_leases = 6\nsession_leases = 4\nuid_names = 2\nuid_groups = 4\nuid_tickets = 2\n"
      "session_tickets = 3\nuid_watches = 5\nsession_watches = 3\nuid_sessions = 3\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker), second = greeted(broker);
    const std::string uid = "raise limits.uid." + kUid + ".";
    auto a = create_region(client, 4096, "a"), b = create_region(client, 4096, "b");
    check_limit(refused_create(client, sized_in(4096), "c"),
                {SHMBW_SLOT_NAMES, SHMBW_SCOPE_UID, 2, 2, 1, uid + "names"});
    auto c = create_region(client, 4096);
    check_limit(refused_create(client, sized_in(4096)),
                {SHMBW_SLOT_REGIONS, SHMBW_SCOPE_UID, 3, 3, 1, uid + "regions"});

    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_ID;
    attach.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
    for (const auto& region : {a.region, b.region, c.region}) {
      attach.region = region;
      ok_element<shmbw_attach_reply>(second, SHMBW_OP_ATTACH, attach);
    }
    RawClient third = greeted(broker);
    RawPacket reply = third.call_batch(SHMBW_OP_ATTACH, one(attach));
    check_limit(error_of_element(reply), {SHMBW_SLOT_LEASES, SHMBW_SCOPE_UID, 6, 6, 1, uid + "leases"});
    CHECK(reply.fds.empty());

    RawClient fourth = RawClient::connect(broker.socket());
    check_limit(error_of(fourth.hello()), {SHMBW_SLOT_SESSIONS, SHMBW_SCOPE_UID, 3, 3, 1, uid + "sessions"});
    RawClient admin = RawClient::connect(broker.admin());
    CHECK(admin.hello().ok());
    admin.close();
    third.close();
    // The same connection, once there is room.
    for (int tries = 0; tries < 30'000 && !fourth.hello().ok(); ++tries) ::usleep(1000);
    CHECK(fourth.status().ok());

    shmbw_ticket_revoke revokes[2]{};
    for (auto& revoke : revokes) {
      RawPacket drawn = client.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{c.region, SHMBW_RIGHT_MAP_READ, 1, 0});
      REQUIRE(drawn.ok());
      std::memcpy(revoke.ticket, drawn.fixed<shmbw_ticket_create_reply>().ticket, sizeof revoke.ticket);
    }
    check_limit(
        error_of(client.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{c.region, SHMBW_RIGHT_MAP_READ, 1, 0})),
        {SHMBW_SLOT_TICKETS, SHMBW_SCOPE_UID, 2, 2, 1, uid + "tickets"});
    for (const auto& revoke : revokes) CHECK(client.call(SHMBW_OP_TICKET_REVOKE, revoke).ok());

    shmbw_watch watch{};
    watch.kind = SHMBW_WATCH_KIND_RECLAIM;
    watch.events = SHMBW_WATCH_EVENT_RECLAIM;
    for (int i = 0; i < 3; ++i) CHECK(client.call(SHMBW_OP_WATCH, watch).ok());
    shmb::Error error = error_of(client.call(SHMBW_OP_WATCH, watch));
    CHECK(error.shortage.scope_id != 0);
    check_limit(error, {SHMBW_SLOT_WATCHES, SHMBW_SCOPE_SESSION, 3, 3, 1, "raise limits.session_watches"});
    for (int i = 0; i < 2; ++i) CHECK(second.call(SHMBW_OP_WATCH, watch).ok());
    check_limit(error_of(second.call(SHMBW_OP_WATCH, watch)),
                {SHMBW_SLOT_WATCHES, SHMBW_SCOPE_UID, 5, 5, 1, uid + "watches"});

    // One group is client's own.
    for (int i = 0; i < 3; ++i) CHECK(client.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{}).ok());
    check_limit(error_of(client.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{})),
                {SHMBW_SLOT_GROUPS, SHMBW_SCOPE_UID, 4, 4, 1, uid + "groups"});
    check_limit(refused_create(fourth, sized_in(4096)), {SHMBW_SLOT_GROUPS, SHMBW_SCOPE_UID, 4, 4, 1, uid + "groups"});
    Books books = books_of(broker);
    CHECK(books.regions == 3);
    CHECK(books.leases == 6);
    CHECK(books.groups == 4);
  });
}

TEST_CASE("a session's leases and a group's regions are limited by themselves") {
  BrokerOptions options;
  options.config = "[limits]\nsession_leases = 2\ngroup_regions = 3\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    create_region(client, 4096);
    auto last = create_region(client, 4096);
    shmb::Error error = refused_create(client, sized_in(4096));
    check_limit(error, {SHMBW_SLOT_LEASES, SHMBW_SCOPE_SESSION, 2, 2, 1, "raise limits.session_leases"});
    CHECK(books_of(broker).regions == 2);  // the region that was made for it is gone again
    // A lease counts; more references to it do not.
    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_ID;
    attach.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
    attach.region = last.region;
    ok_element<shmbw_attach_reply>(client, SHMBW_OP_ATTACH, attach);
    RawClient second = greeted(broker);
    create_region(second, sized_in(4096, last.group));
    check_limit(refused_create(second, sized_in(4096, last.group)),
                {SHMBW_SLOT_REGIONS, SHMBW_SCOPE_GROUP, 3, 3, 1, "raise limits.group_regions"});
    shmbw_group_create wish{};
    wish.limit_regions = 1;
    auto group = second.call(SHMBW_OP_GROUP_CREATE, wish).fixed<shmbw_group_create_reply>();
    create_region(second, sized_in(4096, group.group));
  });
}

TEST_CASE("the descriptor table is limited before it is full") {
  BrokerOptions options;
  options.config = "descriptors = 128\ndescriptors_reserved = 32\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    shmb::Error error;
    std::vector<shmbw_region_ref> made;
    for (int i = 0; i < 128; ++i) {
      RawPacket reply = client.call_batch(SHMBW_OP_CREATE, one(sized_in(4096)));
      REQUIRE(reply.ok());
      if (reply.element<shmbw_outcome>(0).status == 0) {
        made.push_back(reply.element<shmbw_create_reply>(0).region);
        continue;
      }
      error = error_of_element(reply);
      break;
    }
    CHECK(made.size() > 40);
    INFO(error.sentence);
    CHECK(error.status == shmb::Status::no_descriptors);
    CHECK(wrong_with_sentence(error) == "");
    CHECK(error.shortage.slot == SHMBW_SLOT_DESCRIPTORS);
    CHECK(error.sentence.find("raise descriptors") != std::string::npos);
    CHECK(broker.descriptors() <= 128);
    release(client, made.back());
    create_region(client, 4096);
  });
}

// Two sessions that ask for the same region over and over, as many descriptors as an answer carries, until `end` opens.
// Ends with 0 if all came.
harness::Child greedy_reader(const std::string& socket, const harness::Gate& end) {
  return harness::Child::run_as(60'001, 60'001, [&] {
    constexpr std::size_t kSessions = 2;
    RawClient clients[kSessions];
    std::vector<shmbw_attach> wishes(SHMBW_MAX_BATCH);
    for (RawClient& client : clients) {
      client = RawClient::connect(socket);
      if (!client.hello().ok()) return 1;
    }
    RawPacket made = clients[0].create(4096);
    if (!made.ok() || made.element<shmbw_outcome>(0).status != 0) return 2;
    for (shmbw_attach& wish : wishes) {
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = SHMBW_RIGHT_MAP_READ;
      wish.region = made.element<shmbw_create_reply>(0).region;
    }
    for (RawClient& client : clients)
      if (!client.send(batch(SHMBW_OP_ATTACH, 1000, wishes))) return 3;
    // Each answer is read as it comes: one session may wait for the other to be read. Both stay until both are done,
    // because the region ends with the first.
    bool done[kSessions] = {};
    while (!done[0] || !done[1])
      for (std::size_t i = 0; i < kSessions; ++i) {
        if (done[i]) continue;
        RawPacket reply = clients[i].receive(2);
        if (reply.kind == RawPacket::Kind::nothing) continue;
        if (!reply.ok() || reply.descriptors_lost) return 4;
        if (reply.fds.size() != wishes.size()) return 5;
        done[i] = end.wait(0);
        if (!done[i] && !clients[i].send(batch(SHMBW_OP_ATTACH, 1000, wishes))) return 6;
      }
    return 0;
  });
}

// Comes and goes. Ends with 0 if every session was greeted.
harness::Child newcomer(const std::string& socket) {
  return harness::Child::run_as(60'001, 60'001, [&] {
    for (int i = 0; i < 200; ++i)
      if (!RawClient::connect(socket).hello().ok()) return 1;
    return 0;
  });
}

TEST_CASE("readers that keep asking for as much as a message carries leave others their descriptors") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  BrokerOptions options;
  options.system = true;
  // Nobody is disconnected because the machine gave him no time to read.
  options.config = "descriptors = 1024\nunread_timeout = \"10m\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket(), 60'002);
    harness::Gate end;
    std::vector<harness::Child> greedy;
    for (int i = 0; i < 5; ++i) greedy.push_back(greedy_reader(broker.socket(), end));
    for (int i = 0; i < 40 && bystander.goes_on(); ++i) continue;
    CHECK(bystander.wrong() == "");
    CHECK(newcomer(broker.socket()).wait() == 0);
    end.open();
    for (harness::Child& each : greedy) CHECK_MESSAGE(each.wait() == 0, broker.log());
    CHECK(broker.log().find("table is full") == std::string::npos);
  });
}

// A session that asks for so many descriptors, and does not read the answer until `end` opens.
harness::Child idle_reader(const std::string& socket, const harness::Gate& end, std::size_t descriptors) {
  return harness::Child::run_as(60'001, 60'001, [&, descriptors] {
    RawClient client = RawClient::connect(socket);
    if (!client.hello().ok()) return 1;
    RawPacket made = client.create(4096);
    if (!made.ok() || made.element<shmbw_outcome>(0).status != 0) return 2;
    std::vector<shmbw_attach> wishes(descriptors);
    for (shmbw_attach& wish : wishes) {
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = SHMBW_RIGHT_MAP_READ;
      wish.region = made.element<shmbw_create_reply>(0).region;
    }
    if (!client.send(batch(SHMBW_OP_ATTACH, 1000, wishes))) return 3;
    return end.wait() ? 0 : 4;
  });
}

TEST_CASE("however many processes of a user read nothing, other users are served") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  BrokerOptions options;
  options.system = true;
  options.config = "descriptors = 1024\nunread_timeout = \"10m\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket(), 60'002);
    harness::Gate end;
    std::vector<harness::Child> idle;
    // The large answers that fit, then small ones, one for each process.
    for (int i = 0; i < 4; ++i) idle.push_back(idle_reader(broker.socket(), end, SHMBW_MAX_BATCH));
    for (int i = 0; i < 40 && bystander.goes_on(); ++i) continue;
    for (int i = 0; i < 25; ++i) idle.push_back(idle_reader(broker.socket(), end, 4));
    for (int i = 0; i < 100 && bystander.goes_on(); ++i) continue;
    CHECK(bystander.wrong() == "");
    end.open();
    for (harness::Child& each : idle) CHECK_MESSAGE(each.wait() == 0, broker.log());
  });
}

TEST_CASE("a full batch over a limit tells each element, and the ones before it stay made") {
  BrokerOptions options;
  options.config = "[limits]\nuid_regions = 100\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    std::vector<shmbw_create> wishes(SHMBW_MAX_BATCH, sized_in(4096));
    RawPacket reply = client.call_batch(SHMBW_OP_CREATE, std::span<const shmbw_create>(wishes));
    REQUIRE(wrong_with(reply, batch(SHMBW_OP_CREATE, reply.header().tag, wishes)) == "");
    CHECK(reply.fds.size() == 100);
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      CHECK(reply.element<shmbw_outcome>(i).status == (i < 100 ? 0 : SHMB_E_LIMIT));
      if (i < 100) continue;
      shmb::Error error = error_of_element(reply, i);
      CHECK(error.shortage.limit == 100);
      CHECK(error.sentence.find("limit: regions of uid") == 0);
    }
    CHECK(books_of(broker).regions == 100);
  });
}

}  // namespace wire_test
