// SPDX-License-Identifier: Apache-2.0
// CREATE, ATTACH, RELEASE: what is made, who may address it, and every refusal.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "base/sys_memory.hpp"
#include "proto/names.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;
using shmb::daemon::Config;

namespace {

std::string memfd_label(const Fd& fd) {
  char target[300];
  auto size = readlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), target, sizeof target);
  REQUIRE(size > 0);
  std::string out(target, static_cast<std::size_t>(size));
  out = out.substr(std::string("/memfd:").size());
  return out.substr(0, out.find(' '));
}

}  // namespace

TEST_CASE("a region is born sized, sealed, with mode 0600 and a label that names it, and holds no memory") {
  World world(private_config(), {.exec_seal = true});
  Client client = world.client(1000);
  auto group = client.make_group({.name = "train"}).fixed<shmbw_group_create_reply>();
  REQUIRE(client.join("train").status() == Status::ok);
  Created created = client.create({.name = "weights", .length = 5000});
  REQUIRE(created.status == Status::ok);
  auto facts = sys::file_facts(created.memory.get());
  REQUIRE(facts);
  CHECK(facts->size == 8192);
  CHECK(created.reply.bytes == 8192);
  CHECK(created.reply.group == group.group);
  CHECK(created.reply.rights == kAll);
  CHECK(created.reply.flags == 0);
  CHECK((facts->mode & 0777) == 0600);
  CHECK(facts->touched == 0);
  int seals = *sys::seals(created.memory.get());
  CHECK((seals & (F_SEAL_GROW | F_SEAL_SHRINK)) == (F_SEAL_GROW | F_SEAL_SHRINK));
  CHECK((seals & (F_SEAL_SEAL | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0);
  auto label = names::parse_memfd_name(memfd_label(created.memory));
  REQUIRE(label);
  CHECK(label->epoch == 0xe10c);
  CHECK(label->id == created.reply.region.id);
  CHECK(label->generation == 1);
  CHECK(label->owner_uid == 1000);
  CHECK(label->group == "train");
  CHECK(label->region == "weights");
  Created unnamed = client.create();
  auto label_of_unnamed = names::parse_memfd_name(memfd_label(unnamed.memory));
  REQUIRE(label_of_unnamed);
  CHECK(label_of_unnamed->region.empty());
}

TEST_CASE("bytes are pages below 2 MiB and huge pages from there") {
  World world;
  Client client = world.client();
  for (auto [length, bytes] : {std::pair<std::uint64_t, std::uint64_t>{0, 4096},
                               {1, 4096},
                               {4096, 4096},
                               {4097, 8192},
                               {2 * kMiB - 1, 2 * kMiB},
                               {2 * kMiB, 2 * kMiB},
                               {2 * kMiB + 1, 4 * kMiB},
                               {5 * kMiB, 6 * kMiB}}) {
    Created created = client.create({.length = length});
    CHECK(created.reply.bytes == bytes);
    CHECK(sys::file_facts(created.memory.get())->size == bytes);
    CHECK(client.attach_id(created.ref()).status == Status::not_ready);
    CHECK(client.attach_id(created.ref(), kWrite).reply.length == length);
  }
}

TEST_CASE("wrong words of a create are refused with a sentence and book nothing") {
  World world;
  Client client = world.client();
  CHECK(client.create({.length = 1ULL << 47}).status == Status::invalid);
  CHECK(client.create({.length = UINT64_MAX}).status == Status::invalid);
  CHECK(client.create({.flags = 1U << 20}).status == Status::unknown_flags);
  CHECK(client.create({.rights = 1U << 20}).status == Status::unknown_flags);
  CHECK(client.create({.rights = kRead}).status == Status::invalid);
  CHECK(client.create({.name = "a/b"}).status == Status::invalid);
  CHECK(client.create({.name = ".a"}).status == Status::invalid);
  CHECK(client.create({.name = std::string("a\0b", 3)}).status == Status::invalid);
  CHECK(client.create({.name = std::string(97, 'x')}).status == Status::invalid);
  CHECK(client.create({.flags = SHMBW_CREATE_REPLACE}).status == Status::invalid);
  CHECK(client.create({.name = "k", .keep = 5}).status == Status::invalid);
  CHECK(client.create({.name = "k", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -2}).status == Status::invalid);
  Created too_long = client.create({.name = "k", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 8LL * 24 * 3600 * kSecond});
  CHECK(too_long.status == Status::limit);
  CHECK(too_long.error.shortage.slot == SHMBW_SLOT_KEEP);
  CHECK(too_long.error.sentence ==
        "limit: keep of 8d asked, at most 7d; give SHMB_KEEP_UNTIL_RELEASED, or raise limits.keep_max");
  // Only a name holds a region beyond its group.
  for (const std::int64_t keep : {std::int64_t{-1}, std::int64_t{kSecond}}) {
    const Created unnamed = client.create({.flags = SHMBW_CREATE_KEEP_GIVEN, .keep = keep});
    CHECK(unnamed.status == Status::invalid);
    CHECK(unnamed.error.sentence.find("keep needs a name") != std::string::npos);
  }
  CHECK(client.create({.group = 4711}).status == Status::not_found);
  auto status = client.status();
  CHECK(status.regions == 0);
  CHECK(status.groups == 0);
  CHECK(status.bytes == 0);
}

TEST_CASE("a region is freed with its last reference and not before") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  Created created = a.create();
  CHECK(b.attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(b.attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(a.release(created.ref()).status == Status::ok);
  CHECK(a.status().regions == 1);
  CHECK(b.release(created.ref(), 1).status == Status::ok);
  CHECK(b.release(created.ref(), 2).status == Status::invalid);
  CHECK(a.status().regions == 1);
  CHECK(b.release(created.ref(), 1).status == Status::ok);
  CHECK(a.status().regions == 0);
  CHECK(a.status().bytes == 0);
  CHECK(b.release(created.ref()).status == Status::not_found);
  CHECK(b.attach_id(created.ref(), kWrite).status == Status::not_found);
}

TEST_CASE("another generation under the id is stale, for sessions that may know of it") {
  World world;
  Client a = world.client(1000), b = world.client(2000);
  Created created = a.create();
  auto ref = created.ref();
  ref.generation = 9;
  CHECK(a.attach_id(ref, kWrite).status == Status::stale);
  CHECK(a.release(ref).status == Status::stale);
  CHECK(a.publish(ref).status() == Status::stale);
  CHECK(b.attach_id(ref, kWrite).status == Status::not_found);
  ref.generation = 0;  // whichever
  CHECK(a.attach_id(ref, kWrite).status == Status::ok);
}

TEST_CASE("a name holds its region without any lease until it is taken away with the right to") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  REQUIRE(a.make_group({.name = "g"}).status() == Status::ok);
  REQUIRE(a.join("g").status() == Status::ok);
  Created created = a.create({.name = "n"});
  CHECK(a.create({.name = "n"}).status == Status::exists);
  CHECK(a.release(created.ref()).status == Status::ok);
  Attached weak = b.attach_name("g", "n", kWrite);
  REQUIRE(weak.status == Status::ok);
  CHECK(weak.reply.region.id == created.ref().id);
  CHECK((weak.reply.flags & SHMBW_REGION_NAMED) != 0);
  CHECK(b.release(created.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::denied);
  CHECK(b.release(created.ref()).status == Status::ok);
  CHECK(a.status().regions == 1);
  CHECK(b.release(created.ref(), 0, 0x40).status == Status::unknown_flags);
  // Of the same uid and without a lease: what the tool's `release` does.
  CHECK(b.release(created.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
  CHECK(a.status().regions == 0);
  CHECK(a.attach_name("", "n", kWrite).status == Status::not_found);
}

TEST_CASE("a create is undone with its name, whatever rights it asked for, and only by its session") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  REQUIRE(a.make_group({.name = "g"}).status() == Status::ok);
  REQUIRE(a.join("g").status() == Status::ok);
  const Created poor = a.create({.name = "poor", .rights = kWrite});
  REQUIRE(poor.status == Status::ok);
  CHECK(a.release(poor.ref(), 1, SHMBW_RELEASE_UNNAME).status == Status::denied);
  CHECK(b.release(poor.ref(), 1, SHMBW_RELEASE_UNDO).status == Status::denied);
  REQUIRE(b.attach_name("g", "poor", kWrite).status == Status::ok);
  CHECK(b.release(poor.ref(), 1, SHMBW_RELEASE_UNDO).status == Status::denied);
  CHECK(b.release(poor.ref()).status == Status::ok);
  CHECK(a.release(poor.ref(), 1, SHMBW_RELEASE_UNDO).status == Status::ok);
  CHECK(a.status().regions == 0);
  const Created unnamed = a.create({.rights = kWrite});
  CHECK(a.release(unnamed.ref(), 1, SHMBW_RELEASE_UNDO).status == Status::ok);
  CHECK(a.status().regions == 0);
  CHECK(a.status().leases == 0);
}

TEST_CASE("a name with holders goes with the last lease, ticket or process that has it, in a group that lives on") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  REQUIRE(a.make_group({.name = "g"}).status() == Status::ok);
  REQUIRE(a.join("g").status() == Status::ok);
  CHECK(a.create({.flags = SHMBW_CREATE_NAME_WITH_HOLDERS}).status == Status::invalid);
  CHECK(a.create({.name = "n", .flags = SHMBW_CREATE_NAME_WITH_HOLDERS | SHMBW_CREATE_KEEP_GIVEN}).status ==
        Status::invalid);
  const auto made = [&] { return a.create({.name = "n", .flags = SHMBW_CREATE_NAME_WITH_HOLDERS}); };
  SUBCASE("a release") {
    Created created = made();
    Attached other = b.attach_name("g", "n", kWrite);
    REQUIRE(other.status == Status::ok);
    CHECK((other.reply.flags & SHMBW_REGION_NAME_WITH_HOLDERS) != 0);
    CHECK(a.release(created.ref()).status == Status::ok);
    CHECK(a.create({.name = "n"}).status == Status::exists);
    CHECK(b.release(created.ref()).status == Status::ok);
  }
  SUBCASE("a death") {
    (void)made();
    REQUIRE(b.attach_name("g", "n", kWrite).status == Status::ok);
    b.die();
    CHECK(a.create({.name = "n"}).status == Status::exists);
    Client member = world.client(1000);
    REQUIRE(member.join("g").status() == Status::ok);
    a.die();
    CHECK(member.attach_name("g", "n", kWrite).status == Status::not_found);
    CHECK(member.status().regions == 0);
    return;
  }
  SUBCASE("a ticket") {
    Created created = made();
    const auto ticket = Client::ticket_of(a.ticket(created.ref(), kWrite));
    CHECK(a.release(created.ref()).status == Status::ok);
    Attached other = b.attach_ticket(ticket, kWrite);
    REQUIRE(other.status == Status::ok);
    CHECK(a.create({.name = "n"}).status == Status::exists);
    CHECK(b.release(created.ref()).status == Status::ok);
  }
  CHECK(a.attach_name("g", "n", kWrite).status == Status::not_found);
  CHECK(a.status().regions == 0);
  CHECK(a.create({.name = "n"}).status == Status::ok);
}

TEST_CASE("replace makes the next generation, and the old region keeps its leases but no name") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  a.make_group({.name = "g"});
  a.join("g");
  b.join("g");
  Created first = a.create({.name = "n"});
  CHECK(b.attach_name("", "n", kWrite).status == Status::ok);
  // b's lease has no right release
  CHECK(b.create({.name = "n", .flags = SHMBW_CREATE_REPLACE}).status == Status::denied);
  Created second = a.create({.name = "n", .flags = SHMBW_CREATE_REPLACE});
  REQUIRE(second.status == Status::ok);
  CHECK(second.ref().id != first.ref().id);
  CHECK(second.ref().generation == 2);
  CHECK(b.attach_name("", "n", kWrite).reply.region.id == second.ref().id);
  CHECK(b.attach_id(first.ref(), kWrite).status == Status::ok);
  CHECK(a.status().regions == 2);
  CHECK(a.create({.name = "fresh", .flags = SHMBW_CREATE_REPLACE}).ref().generation == 1);
  a.release(first.ref());
  b.release(first.ref());
  CHECK(a.attach_id(first.ref(), kWrite).status == Status::not_found);
}

TEST_CASE("other uids get the same answer for what is there and what is not, byte for byte") {
  World world;
  Client owner = world.client(1000), other = world.client(2000);
  owner.make_group({.name = "g"});
  owner.join("g");
  Created secret = owner.create({.name = "n"});
  auto bytes_of = [&](auto ask) {
    ask();
    std::vector<std::byte> bytes = other.link().replies.back().bytes;
    std::memset(bytes.data() + offsetof(shmbw_header, tag), 0, 8);
    return bytes;
  };
  // The same words, in a world where there is nothing of the kind.
  World bare;
  Client nobody = bare.client(1000), elsewhere = bare.client(2000);
  auto same = [&](auto ask) {
    std::vector<std::byte> answers[2];
    for (Client* asker : {&other, &elsewhere}) {
      ask(*asker);
      auto& bytes = answers[asker == &other] = asker->link().replies.back().bytes;
      std::memset(bytes.data() + offsetof(shmbw_header, tag), 0, 8);
    }
    return answers[0] == answers[1];
  };
  const shmbw_region_ref ref = secret.ref();
  const std::uint64_t group = secret.reply.group;
  CHECK(same([&](Client& asker) { asker.attach_id(ref); }));
  CHECK(same([&](Client& asker) { asker.attach_name("g", "n", kRead, 1000); }));
  CHECK(same([&](Client& asker) { asker.attach_name("g", "m", kRead, 1000); }));
  CHECK(same([&](Client& asker) { asker.attach_name("#1", "n", kRead, 1000); }));
  CHECK(same([&](Client& asker) { asker.attach_name("g", "n"); }));
  CHECK(same([&](Client& asker) { asker.release(ref); }));
  CHECK(same([&](Client& asker) { asker.publish(ref); }));
  CHECK(same([&](Client& asker) { asker.ticket(ref); }));
  CHECK(same([&](Client& asker) { asker.watch_region(ref, 1); }));
  CHECK(same([&](Client& asker) { asker.join("g", 0, 1000); }));
  CHECK(same([&](Client& asker) { asker.join("#1", 0, 1000); }));
  CHECK(same([&](Client& asker) { asker.end_group(group); }));
  CHECK(same([&](Client& asker) { asker.watch_group(group); }));
  CHECK(other.create({.group = group}).error.sentence == elsewhere.create({.group = group}).error.sentence);
  auto absent = ref;
  absent.id += 1000;
  shmbw_list by_id{}, by_absent{};
  by_id.table = by_absent.table = SHMBW_TABLE_REGIONS;
  by_id.region.id = secret.ref().id;
  by_absent.region.id = absent.id;
  CHECK(bytes_of([&] { other.list(by_id); }) == bytes_of([&] { other.list(by_absent); }));
  for (std::uint32_t table = SHMBW_TABLE_REGIONS; table <= SHMBW_TABLE_UIDS; ++table) {
    shmbw_list named{};
    named.table = table;
    named.flags = SHMBW_LIST_OWNER_GIVEN;
    named.owner_uid = 1000;
    auto there = bytes_of([&] { other.list(named, "g"); });
    CHECK(there == bytes_of([&] { other.list(named, "h"); }));
  }
  CHECK(other.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).empty());
  CHECK(other.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS).empty());
  CHECK(other.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).empty());
  CHECK(other.rows<shmbw_session_record>(SHMBW_TABLE_SESSIONS).size() == 1);
  CHECK(other.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS).size() == 1);
}

TEST_CASE("two uids may both have a group of one name, and neither meets the other's") {
  World world;
  Client a = world.client(1000), b = world.client(2000);
  for (Client* client : {&a, &b}) {
    CHECK(client->make_group({.name = "trainer"}).status() == Status::ok);
    CHECK(client->join("trainer").status() == Status::ok);
    CHECK(client->create({.name = "w"}).status == Status::ok);
  }
  CHECK(a.attach_name("trainer", "w", kWrite).reply.region.id != b.attach_name("trainer", "w", kWrite).reply.region.id);
}

TEST_CASE("each element of a batch has its own outcome and descriptor") {
  World world;
  Client client = world.client();
  auto out = client.create_many({{.name = "a"}, {.length = UINT64_MAX}, {.name = "a"}, {.name = "b"}});
  REQUIRE(out.size() == 4);
  CHECK(out[0].status == Status::ok);
  CHECK(out[0].fd == 0);
  CHECK(out[1].status == Status::invalid);
  CHECK(out[2].status == Status::exists);
  CHECK(out[2].error.sentence.find("'a'") != std::string::npos);
  CHECK(out[3].status == Status::ok);
  CHECK(out[3].fd == 1);
  CHECK(sys::file_facts(out[3].memory.get())->inode != sys::file_facts(out[0].memory.get())->inode);
}

TEST_CASE("a batch of 253 is served whole, and 253 refusals fit with as many sentences as there is room for") {
  World world;
  Client client = world.client();
  auto all = client.create_many(std::vector<CreateRequest>(253));
  for (const Created& created : all) {
    REQUIRE(created.status == Status::ok);
    REQUIRE(created.memory);
  }
  auto none = client.create_many(std::vector<CreateRequest>(253, CreateRequest{.length = UINT64_MAX}));
  for (const Created& created : none) REQUIRE(created.status == Status::invalid);
  CHECK(none.front().error.sentence.find("2^47 - 1 bytes") != std::string::npos);
}

TEST_CASE("a batch whose texts do not add up is refused whole and does nothing") {
  World world;
  Client client = world.client();
  shmbw_create element{};
  element.length = 4096;
  element.name_len = 5;
  CHECK(client.batch<shmbw_create>(SHMBW_OP_CREATE, {element}, "four").status() == Status::invalid);
  CHECK(client.batch<shmbw_create>(SHMBW_OP_CREATE, {element}, "sixsix").status() == Status::invalid);
  CHECK(client.batch<shmbw_create>(SHMBW_OP_CREATE, {shmbw_create{0, 4096, 0, 0, 0, 0, 0, 0}, element}, "four")
            .status() == Status::invalid);
  CHECK(client.status().regions == 0);
}

TEST_CASE("release and ready with no_reply are never answered, also when they are wrong") {
  World world;
  Client client = world.client();
  Created created = client.create();
  auto gone = created.ref();
  gone.id = 99;
  client.batch<shmbw_release>(SHMBW_OP_RELEASE, {{gone, 0, 0}}, {}, SHMBW_HEADER_NO_REPLY);
  client.batch<shmbw_release>(SHMBW_OP_RELEASE, {{created.ref(), 0, 0}}, "junk", SHMBW_HEADER_NO_REPLY);
  CHECK(client.status().regions == 1);
  client.batch<shmbw_ready>(SHMBW_OP_READY, {{gone, 0, 0, 0}});
  client.batch<shmbw_ready>(SHMBW_OP_READY, {{created.ref(), 0, 99, 0}});
  client.batch<shmbw_release>(SHMBW_OP_RELEASE, {{created.ref(), 0, 0}}, {}, SHMBW_HEADER_NO_REPLY);
  CHECK(client.status().regions == 0);
}

TEST_CASE("a size that is not set follows the wider one: the refusal names the key that must be changed, no other") {
  constexpr std::uint64_t page = 4096;
  const auto remedy = [](Config config, const std::string& group, std::uint64_t length, std::uint64_t made_with = 0) {
    complete_limits(config.limits);
    World world(config);
    Client client = world.client(1000);
    client.make_group({.name = group, .limit_bytes = made_with});
    client.join(group);
    const Created refused = client.create({.length = length});
    CHECK(refused.status == Status::limit);
    CHECK(refused.error.shortage.scope == SHMBW_SCOPE_GROUP);  // the one that was met first, with its numbers
    return refused.error.sentence.substr(refused.error.sentence.find("; ") + 2);
  };
  Config config = private_config();
  config.limits.host_bytes = 100 * page;
  config.limits.uid_bytes = config.limits.group_bytes = 0;
  CHECK(remedy(config, "g", 101 * page) == "raise limits.bytes");
  SUBCASE("of the uid") {
    config.limits.uid_bytes = 60 * page;
    CHECK(remedy(config, "g", 61 * page) == "raise limits.uid.1000.bytes");
    CHECK(remedy(config, "g", 101 * page) == "raise limits.uid.1000.bytes and limits.bytes");
    config.limits.uid[1000].bytes = 80 * page;
    CHECK(remedy(config, "g", 81 * page) == "raise limits.uid.1000.bytes");
    CHECK(remedy(config, "g", 101 * page) == "raise limits.uid.1000.bytes and limits.bytes");
    config.limits.uid[1000].bytes = 50 * page;
    config.limits.group["g"].bytes = 40 * page;
    CHECK(remedy(config, "g", 41 * page) == "raise limits.group.g.bytes");
    CHECK(remedy(config, "g", 51 * page) == "raise limits.group.g.bytes and limits.uid.1000.bytes");
  }
  SUBCASE("of the group") {
    config.limits.group_bytes = 60 * page;
    CHECK(remedy(config, "g", 61 * page) == "raise limits.group.g.bytes");
    CHECK(remedy(config, "g", 101 * page) == "raise limits.group.g.bytes and limits.bytes");
    config.limits.uid[1000].bytes = 70 * page;
    CHECK(remedy(config, "g", 71 * page) == "raise limits.group.g.bytes and limits.uid.1000.bytes");
  }
  SUBCASE("of the group's maker") {
    config.limits.group_bytes = 60 * page;
    CHECK(remedy(config, "g", 11 * page, 10 * page) == "raise the group's limit: `shmbroker limit g 44K` or more");
    CHECK(remedy(config, "g", 61 * page, 10 * page) ==
          "raise the group's limit: `shmbroker limit g 244K` or more, and raise limits.group.g.bytes");
  }
}

TEST_CASE("a user that may have more than others has groups that may") {
  constexpr std::uint64_t page = 4096;
  Config config = private_config();
  config.limits.host_bytes = 100 * page;
  config.limits.uid_bytes = 60 * page;
  config.limits.group_bytes = 0;
  config.limits.uid[1000].bytes = 80 * page;
  config.limits.group["small"].bytes = 10 * page;
  complete_limits(config.limits);
  World world(config);
  Client client = world.client(1000);
  const auto make = [&](std::string name, std::uint64_t length, std::uint64_t made_with = 0) {
    client.make_group({.name = name, .limit_bytes = made_with});
    client.join(name);
    return client.create({.length = length}).status;
  };
  CHECK(make("small", 11 * page) == Status::limit);
  CHECK(make("made_with", 71 * page, 70 * page) == Status::limit);
  CHECK(make("follows", 80 * page) == Status::ok);
}

TEST_CASE("an absent object and another user's get the same answer: its name, and where to look") {
  World world(system_config());
  Client owner = world.client(1000), asker = world.client(2000);
  const std::uint64_t group = owner.make_group({.name = "there"}).fixed<shmbw_group_create_reply>().group;
  owner.join("there");
  const Created hidden = owner.create({.name = "kv"});
  const auto by_name = [&](std::string_view in, std::string_view name) {
    const Attached answer = asker.attach_name(in, name, kRead, 1000);
    CHECK(answer.status == Status::not_found);
    return answer.error.sentence;
  };
  CHECK(
      by_name("there", "kv") ==
      "no region 'kv' in group '1000:there', or not for this caller; `shmbroker list --group '1000:there'` shows what "
      "there is");
  const auto like = [](std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
      text.replace(at, from.size(), to);
    return text;
  };
  CHECK(by_name("nowhere", "kv") == like(by_name("there", "kv"), "there'", "nowhere'"));
  const std::string by_id = asker.attach_id(hidden.ref()).error.sentence;
  CHECK(by_id == "no region " + std::to_string(hidden.ref().id) +
                     ", or not for this caller; `shmbroker list` shows what there is");
  CHECK(asker.attach_id({4711, 1, 0}).error.sentence ==
        like(by_id, " " + std::to_string(hidden.ref().id) + ",", " 4711,"));
  CHECK(asker.join("there", 0, 1000).error().sentence ==
        "no group '1000:there', or not for this caller; `shmbroker list --groups --all-groups` shows what there is");
  const std::string ended = asker.end_group(group).error().sentence;
  CHECK(asker.end_group(4711).error().sentence == like(ended, "@" + std::to_string(group), "@4711"));
  // In the asker's own group, before and after there is one.
  CHECK(asker.attach_name("", "kv").error.sentence.find("in the session's own group, which is not there yet") !=
        std::string::npos);
  asker.make_group({.name = "mine"});
  asker.join("mine");
  CHECK(asker.attach_name("", "kv").error.sentence.find("in group 'mine'") != std::string::npos);
  // Without a lease there is nothing to publish, nor to pass on.
  CHECK(asker.publish(hidden.ref()).error().sentence == asker.ticket(hidden.ref()).error().sentence);
}

TEST_CASE("a refusal of an absent name says where it is: another group of the user, or another kind") {
  World world;
  Client trainer = world.client(1000), other = world.client(1000), foreign = world.client(2000);
  trainer.make_group({.name = "train"});
  trainer.join("train");
  Created made = trainer.create({.name = "kv"});
  REQUIRE(made.status == Status::ok);
  const auto sentence = [](Client& asker, std::string_view group, std::string_view name) {
    Attached attached = asker.attach_name(group, name, kWrite);
    CHECK(attached.status == Status::not_found);
    return attached.error.sentence;
  };
  const auto has = [](const std::string& text, const char* words) {
    INFO(text);
    CHECK(text.find(words) != std::string::npos);
  };
  has(sentence(other, "", "kv"), "in another group of this user, 'train/kv'");
  has(sentence(other, "", "kv"), "programs that are started apart are in different groups");
  CHECK(sentence(other, "", "nowhere").find("another group") == std::string::npos);
  CHECK(sentence(foreign, "", "kv").find("another group") == std::string::npos);
  CHECK(sentence(foreign, "train", "kv").find("another group") == std::string::npos);
  // An unnamed group, by its number; and not the group in which it was looked for.
  Created unnamed = other.create({.name = "w"});
  has(sentence(trainer, "", "w"), ("'@" + std::to_string(unnamed.reply.group) + "/w'").c_str());
  CHECK(sentence(trainer, "train", "missing").find("another group") == std::string::npos);
}

TEST_CASE("every scope's limit refuses with its numbers, its holders and the key to raise") {
  Config config = private_config();
  config.limits.host_bytes = 100 * 4096;
  config.limits.uid_bytes = 60 * 4096;
  config.limits.group_bytes = 40 * 4096;
  config.limits.group_regions = 5;
  config.limits.uid_leases = 8;
  config.limits.uid_names = 3;
  config.limits.uid[1001].bytes = 4096;
  config.limits.group["small"].bytes = 2 * 4096;
  World world(config);
  Client client = world.client(1000);
  SUBCASE("bytes of an unnamed group") {
    Created big = client.create({.name = "big", .length = 30 * 4096});
    REQUIRE(big.status == Status::ok);
    Created refused = client.create({.length = 11 * 4096});
    CHECK(refused.status == Status::limit);
    CHECK(refused.error.shortage.slot == SHMBW_SLOT_BYTES);
    CHECK(refused.error.shortage.scope == SHMBW_SCOPE_GROUP);
    CHECK(refused.error.shortage.limit == 40 * 4096);
    CHECK(refused.error.shortage.used == 30 * 4096);
    CHECK(refused.error.shortage.asked == 11 * 4096);
    CHECK(refused.error.sentence.find("limits.group_bytes") != std::string::npos);
    CHECK(refused.error.sentence.find("'big' (120.0 KiB)") != std::string::npos);
    CHECK(refused.memory.get() == -1);
    CHECK(client.create({.length = 10 * 4096}).status == Status::ok);
  }
  SUBCASE("bytes of a group with its own limit in the configuration") {
    client.make_group({.name = "small"});
    client.join("small");
    CHECK(client.create({.length = 3 * 4096}).error.sentence.find("limits.group.small.bytes") != std::string::npos);
  }
  SUBCASE("bytes of a group made with a limit") {
    client.make_group({.name = "made", .limit_bytes = 4096});
    client.join("made");
    CHECK(client.create({.length = 2 * 4096}).error.shortage.limit == 4096);
  }
  SUBCASE("bytes of a uid over its groups") {
    client.make_group({.name = "a"});
    client.join("a");
    Created first = client.create({.length = 40 * 4096});
    client.make_group({.name = "b"});
    client.join("b");
    Created refused = client.create({.length = 21 * 4096});
    CHECK(refused.error.shortage.scope == SHMBW_SCOPE_UID);
    CHECK(refused.error.shortage.scope_id == 1000);
    CHECK(refused.error.sentence.find("limits.uid.1000.bytes") != std::string::npos);
    CHECK(refused.error.sentence.find("group a") != std::string::npos);
  }
  SUBCASE("bytes of a uid with its own limit") {
    Client other = world.client(1001);
    CHECK(other.create({.length = 4097}).error.shortage.limit == 4096);
  }
  SUBCASE("bytes of the host, whose other holders are a number only") {
    Client other = world.client(2000), third = world.client(3000);
    other.make_group({.name = "hidden"});
    other.join("hidden");
    CHECK(other.create({.length = 40 * 4096}).status == Status::ok);
    CHECK(third.create({.length = 40 * 4096}).status == Status::ok);
    Created refused = client.create({.length = 21 * 4096});
    CHECK(refused.error.shortage.scope == SHMBW_SCOPE_HOST);
    CHECK(refused.error.sentence.find("hidden") == std::string::npos);
    CHECK(refused.error.sentence.find("others (320.0 KiB)") != std::string::npos);
    CHECK(refused.error.sentence.find("limits.bytes") != std::string::npos);
  }
  SUBCASE("regions of a group") {
    auto out = client.create_many(std::vector<CreateRequest>(6));
    CHECK(out[4].status == Status::ok);
    CHECK(out[5].status == Status::limit);
    CHECK(out[5].error.shortage.slot == SHMBW_SLOT_REGIONS);
  }
  SUBCASE("leases of a uid, over its sessions, and nothing is left of the create that was refused") {
    Client second = world.client(1000);
    second.hello();
    auto out = client.create_many(std::vector<CreateRequest>(5));
    for (int i = 0; i < 3; ++i)
      CHECK(second.attach_id(out[static_cast<std::size_t>(i)].ref(), kWrite).status == Status::ok);
    CHECK(second.attach_id(out[3].ref(), kWrite).error.shortage.slot == SHMBW_SLOT_LEASES);
    CHECK(second.attach_id(out[0].ref(), kWrite).status == Status::ok);  // no new lease, one reference more
    Created refused = second.create({.name = "n"});
    CHECK(refused.error.shortage.slot == SHMBW_SLOT_LEASES);
    CHECK(second.status().regions == 5);
  }
  SUBCASE("names of a uid") {
    auto out = client.create_many({{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}});
    CHECK(out[2].status == Status::ok);
    CHECK(out[3].error.shortage.slot == SHMBW_SLOT_NAMES);
    CHECK(client.create({.name = "a", .flags = SHMBW_CREATE_REPLACE}).status == Status::ok);
    CHECK(client.create().status == Status::ok);
  }
}

TEST_CASE("leases of one session have their own limit") {
  Config config = private_config();
  config.limits.session_leases = 2;
  World world(config);
  Client client = world.client();
  auto out = client.create_many(std::vector<CreateRequest>(3));
  CHECK(out[2].error.shortage.scope == SHMBW_SCOPE_SESSION);
  CHECK(out[2].error.sentence.find("limits.session_leases") != std::string::npos);
}

TEST_CASE("the descriptor table minus the reserve bounds regions, and freeing one makes room") {
  Config config = private_config();
  config.descriptors_reserved = 10;
  World world(config, {.descriptors_limit = 40, .transport_descriptors = [] { return 20U; }});
  Client client = world.client();
  auto out = client.create_many(std::vector<CreateRequest>(12));
  CHECK(out[9].status == Status::ok);
  CHECK(out[10].status == Status::no_descriptors);
  CHECK(out[10].error.shortage.limit == 30);
  CHECK(out[10].error.sentence.find("(ulimit -Hn) in the shell that starts the broker, and end pid ") !=
        std::string::npos);
  client.release(out[0].ref());
  CHECK(client.create().status == Status::ok);
}

TEST_CASE("a system call that fails in a create is reported with its errno, and nothing is left") {
  World world;
  Client client = world.client();
  REQUIRE(client.create().status == Status::ok);
  auto before = client.status();
  for (auto [call, code, status] : {std::tuple{fault::Call::memfd_create, EMFILE, Status::no_descriptors},
                                    {fault::Call::memfd_create, ENFILE, Status::no_descriptors},
                                    {fault::Call::memfd_create, ENOMEM, Status::no_memory},
                                    {fault::Call::ftruncate, EIO, Status::system},
                                    {fault::Call::fchmod, EPERM, Status::system},
                                    {fault::Call::add_seals, EPERM, Status::system}}) {
    fault::clear();
    fault::inject(call, code);
    Created refused = client.create({.name = "n"});
    CHECK(refused.status == status);
    CHECK(refused.error.system_errno == code);
    CHECK(refused.error.sentence.size() > 10);
    auto after = client.status();
    CHECK(after.regions == before.regions);
    CHECK(after.bytes == before.bytes);
    CHECK(after.leases == before.leases);
    CHECK(after.descriptors == before.descriptors);
  }
  fault::clear();
  CHECK(client.create({.name = "n"}).status == Status::ok);
}

TEST_CASE("attach asks for map_read, for rights the lease has, and by something") {
  World world;
  Client client = world.client();
  Created created = client.create();
  CHECK(client.attach_id(created.ref(), 0).status == Status::invalid);
  CHECK(client.attach_id(created.ref(), SHMBW_RIGHT_MAP_WRITE).status == Status::invalid);
  CHECK(client.attach_id(created.ref(), 1U << 9).status == Status::unknown_flags);
  CHECK(client.attach_id(created.ref(), kRead, 1U << 9).status == Status::unknown_flags);
  CHECK(client.attach_name("", "a/b").status == Status::invalid);
  shmbw_attach nothing{};
  nothing.rights = kRead;
  Packet& reply = client.batch<shmbw_attach>(SHMBW_OP_ATTACH, {nothing});
  CHECK(wire::BatchView::open(reply.view())->element<shmbw_attach_reply>(0)->outcome.status ==
        static_cast<int>(Status::invalid));
}

TEST_CASE("attach with no_fd books a lease and sends no descriptor") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  Created created = a.create();
  Attached attached = b.attach_id(created.ref(), kWrite, SHMBW_ATTACH_NO_FD);
  CHECK(attached.status == Status::ok);
  CHECK(attached.fd == -1);
  CHECK(b.link().replies.back().fds.empty());
  a.release(created.ref());
  CHECK(b.status().regions == 1);
}

TEST_CASE("a session that only keeps its mapping is asked for it once, when no other session needs the region") {
  World world;
  Client maker = world.client(), keeper = world.client();
  const auto ref = maker.create().ref();
  maker.ready(ref);
  REQUIRE(keeper.attach_id(ref).status == Status::ok);
  const auto asked = [&] {
    std::size_t count = 0;
    for (auto& event : keeper.link().events) {
      CHECK(event.op() == (SHMBW_EVENT | SHMBW_EVENT_GIVE_UP));
      CHECK(event.fixed<shmbw_give_up_event>().region.id == ref.id);
      ++count;
    }
    return count;
  };
  CHECK(keeper.release(ref, 1, SHMBW_RELEASE_KEPT).status == Status::invalid);
  CHECK(keeper.release(ref, 0, SHMBW_RELEASE_KEPT | SHMBW_RELEASE_USED).status == Status::invalid);
  REQUIRE(keeper.release(ref, 0, SHMBW_RELEASE_KEPT).status == Status::ok);
  CHECK(asked() == 0);
  SUBCASE("its last user releases it") {
    REQUIRE(maker.release(ref).status == Status::ok);
    CHECK(asked() == 1);
    REQUIRE(keeper.release(ref, 0, SHMBW_RELEASE_USED).status == Status::ok);
    CHECK(asked() == 1);
    REQUIRE(keeper.release(ref, 0, SHMBW_RELEASE_KEPT).status == Status::ok);  // kept again
    CHECK(asked() == 2);
  }
  SUBCASE("its last user dies") {
    maker.die();
    CHECK(asked() == 1);
  }
  SUBCASE("not while the session uses it besides") {
    REQUIRE(keeper.attach_id(ref).status == Status::ok);
    REQUIRE(maker.release(ref).status == Status::ok);
    CHECK(asked() == 0);
    REQUIRE(keeper.release(ref, 1).status == Status::ok);
    CHECK(asked() == 1);
  }
  SUBCASE("not if it uses it again") {
    REQUIRE(keeper.release(ref, 0, SHMBW_RELEASE_USED).status == Status::ok);
    REQUIRE(maker.release(ref).status == Status::ok);
    CHECK(asked() == 0);
  }
  (void)keeper.release(ref);
  CHECK(keeper.status().regions == 0);
}
