// SPDX-License-Identifier: Apache-2.0
// New limits while regions are in use: they bind what is asked for next, and free nothing.
#include <doctest/doctest.h>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using daemon::Config;
using daemon::parse_config;

namespace {

Config with(const std::string& limits) {
  auto config = parse_config("[limits]\n" + limits, "c.toml", {});
  REQUIRE(config);
  return *config;
}

void reload(World& world, const std::string& limits) { world.books->set_limits(with(limits).limits); }

std::uint64_t limit_of(Client& client, std::uint64_t group) {
  for (const auto& row : client.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS))
    if (row.group == group) return row.bytes_limit;
  return 0;
}

}  // namespace

TEST_CASE("limits below what is used refuse new regions and free nothing, and higher ones let them in again") {
  struct Step {
    const char* lower;
    const char* sentence;
  };
  for (const Step& step :
       {Step{"bytes = \"4M\"", "limits.bytes"}, Step{"uid_bytes = \"4M\"", "limits.uid.1000.bytes"},
        Step{"group_bytes = \"4M\"", "limits.group_bytes"}, Step{"uid_regions = 1", "limits.uid.1000.regions"},
        Step{"group_regions = 1", "limits.group_regions"}, Step{"uid_leases = 1", "limits.uid.1000.leases"},
        Step{"session_leases = 1", "limits.session_leases"},
        Step{"[limits.uid.1000]\nregions = 1", "limits.uid.1000.regions"}}) {
    CAPTURE(step.lower);
    World world(with("bytes = \"64M\""));
    Client client = world.client();
    auto one = client.create({.length = 4 * kMiB}), two = client.create({.length = 4 * kMiB});
    REQUIRE(one.status == Status::ok);
    REQUIRE(two.status == Status::ok);
    reload(world, step.lower);
    CHECK(world.status().regions == 2);
    auto refused = client.create({.length = 4 * kMiB});
    CHECK(refused.status == Status::limit);
    CHECK_MESSAGE(refused.error.sentence.find(step.sentence) != std::string::npos, refused.error.sentence);
    CHECK(world.status().regions == 2);
    CHECK(world.status().bytes == 8 * kMiB);
    reload(world, "bytes = \"64M\"");
    auto again = client.create({.length = 4 * kMiB});
    CHECK(again.status == Status::ok);
    for (auto* region : {&one, &two, &again}) CHECK(client.release(region->ref()).status == Status::ok);
  }
}

TEST_CASE("new limits hold for sessions and users that come afterwards") {
  World world(with("bytes = \"64M\""));
  reload(world, "uid_regions = 1\n[limits.uid.2000]\nregions = 2");
  Client one = world.client(1000), other = world.client(2000);
  CHECK(one.create().status == Status::ok);
  CHECK(one.create().status == Status::limit);
  CHECK(other.create().status == Status::ok);
  CHECK(other.create().status == Status::ok);
  CHECK(other.create().status == Status::limit);
}

TEST_CASE("a limit that was set for one group outlives a reload, and an owner's is never above what is configured") {
  World world(with("bytes = \"64M\"\ngroup_bytes = \"32M\""));
  Client owner = world.client();
  Client admin = world.admin();
  auto group = owner.make_group({.name = "job"}).fixed<shmbw_group_create_reply>().group;
  SUBCASE("no limit was set: the configured one applies") {
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"8M\"");
    CHECK(limit_of(owner, group) == 8 * kMiB);
    reload(world, "bytes = \"64M\"\n[limits.group.job]\nbytes = \"12M\"");
    CHECK(limit_of(owner, group) == 12 * kMiB);
  }
  SUBCASE("the refusal of its owner's wish names the key that binds") {
    auto refused = owner.limit_group(group, 48 * kMiB).error().sentence;
    CHECK_MESSAGE(refused.find("or raise limits.group.job.bytes") != std::string::npos, refused);
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"32M\"\n[limits.group.job]\nbytes = \"8M\"");
    refused = owner.limit_group(group, 16 * kMiB).error().sentence;
    CHECK_MESSAGE(refused.find("or raise limits.group.job.bytes") != std::string::npos, refused);
  }
  SUBCASE("by its owner") {
    CHECK(owner.limit_group(group, 16 * kMiB).status() == Status::ok);
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"8M\"");
    CHECK(limit_of(owner, group) == 8 * kMiB);
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"24M\"");
    CHECK(limit_of(owner, group) == 16 * kMiB);
  }
  SUBCASE("by its maker") {
    auto other = owner.make_group({.name = "other", .limit_bytes = 16 * kMiB}).fixed<shmbw_group_create_reply>().group;
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"24M\"");
    CHECK(limit_of(owner, other) == 16 * kMiB);
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"8M\"");
    CHECK(limit_of(owner, other) == 8 * kMiB);
  }
  SUBCASE("by an administrator: also above what is configured") {
    CHECK(admin.limit_group(group, 48 * kMiB).status() == Status::ok);
    reload(world, "bytes = \"64M\"\ngroup_bytes = \"8M\"");
    CHECK(limit_of(owner, group) == 48 * kMiB);
    CHECK(admin.limit_group(group, 0).fixed<shmbw_group_limit_reply>().bytes == 8 * kMiB);
    CHECK(limit_of(owner, group) == 8 * kMiB);
  }
}
