// SPDX-License-Identifier: Apache-2.0
// Names that the configuration opens to other users: read-only, by uid and by gid, and unseen by all others.
#include <doctest/doctest.h>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using daemon::Config;
using daemon::parse_config;

namespace {

Config ruled(const std::string& rules) {
  auto config = parse_config(rules, "c.toml", system_config());
  REQUIRE_MESSAGE(config, config.error().sentence);
  return *config;
}

constexpr const char* kRules = "[public.\"1000:serve/weights\"]\nuids = [1001]\ngids = [500, 501]\n";

// A user's region serve/weights.
struct Served {
  explicit Served(World& world) : owner(world.client(1000)) {
    owner.make_group({.name = "serve"});
    owner.join("serve");
    region = owner.create({.name = "weights", .length = 8192});
    REQUIRE(region.status == Status::ok);
  }
  Client owner;
  Created region;
};

Client member_of(World& world, std::uint32_t uid, std::uint32_t gid, std::vector<std::uint32_t> groups = {}) {
  Peer peer;
  peer.uid = uid;
  peer.gid = gid;
  peer.groups = std::move(groups);
  peer.pid = world.next_pid++;
  peer.has_pidfd = true;
  Client out(world, peer);
  REQUIRE(out.hello().status() == Status::ok);
  return out;
}

}  // namespace

TEST_CASE("a public name is read by the users and groups of its rule, and by no others") {
  World world(ruled(kRules));
  Served served(world);
  Client by_uid = world.client(1001), by_gid = member_of(world, 3000, 500),
         by_group = member_of(world, 3001, 7, {8, 501});
  for (Client* reader : {&by_uid, &by_gid, &by_group}) {
    const Attached attached = reader->attach_name("serve", "weights", kRead, 1000);
    REQUIRE_MESSAGE(attached.status == Status::ok, attached.error.sentence);
    CHECK(attached.reply.region.id == served.region.ref().id);
    CHECK(attached.reply.rights == SHMBW_RIGHT_MAP_READ);
    CHECK(reader->release(attached.reply.region).status == Status::ok);
  }
  Client stranger = member_of(world, 3002, 7, {8});
  const Attached hidden = stranger.attach_name("serve", "weights", kRead, 1000);
  const Attached absent = stranger.attach_name("serve", "nothing", kRead, 1000);
  CHECK(hidden.status == Status::not_found);
  std::string as_absent = absent.error.sentence;
  as_absent.replace(as_absent.find("nothing"), 7, "weights");
  CHECK(hidden.error.sentence == as_absent);
}

TEST_CASE("a public name gives no right but to read, and nothing of the group beside it") {
  World world(ruled(kRules));
  Served served(world);
  served.owner.create({.name = "secret"});
  Client reader = world.client(1001);
  for (const std::uint32_t more : {SHMBW_RIGHT_MAP_WRITE, SHMBW_RIGHT_SHARE, SHMBW_RIGHT_RELEASE}) {
    const Attached refused = reader.attach_name("serve", "weights", kRead | more, 1000);
    CHECK(refused.status == Status::denied);
    CHECK_MESSAGE(refused.error.sentence.find("the public name does not carry") != std::string::npos,
                  refused.error.sentence);
  }
  CHECK(reader.attach_name("serve", "secret", kRead, 1000).status == Status::not_found);
  CHECK(reader.join("serve", 0, 1000).status() == Status::not_found);
  CHECK(reader.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS).empty());
  CHECK(reader.attach_name("serve", "weights", kRead, 1001).status == Status::not_found);  // its own group of that name
}

TEST_CASE("a reload opens and closes public names, and takes back no lease") {
  World world(ruled(""));
  Served served(world);
  Client reader = world.client(1001);
  CHECK(reader.attach_name("serve", "weights", kRead, 1000).status == Status::not_found);
  world.books->set_limits(ruled(kRules).limits);
  const Attached attached = reader.attach_name("serve", "weights", kRead, 1000);
  CHECK(attached.status == Status::ok);
  world.books->set_limits(ruled("").limits);
  CHECK(reader.attach_name("serve", "weights", kRead, 1000).status == Status::not_found);
  CHECK(reader.attach_id(attached.reply.region).status == Status::ok);
}

TEST_CASE("a rule that cannot be meant is refused with its line") {
  const auto refused = [](const std::string& rules, const std::string& part) {
    const auto config = parse_config(rules, "c.toml", {});
    REQUIRE(!config);
    CHECK_MESSAGE(config.error().sentence.find("c.toml:") != std::string::npos, config.error().sentence);
    CHECK_MESSAGE(config.error().sentence.find(part) != std::string::npos, config.error().sentence);
  };
  refused("[public.weights]\nuids = [1]", "names no region of a user");
  refused("[public.\"serve/weights\"]\nuids = [1]", "names no region of a user");
  refused("[public.\"1000:@7/weights\"]\nuids = [1]", "names no region of a user");
  refused("[public.\"1000:serve/weights\"]", "open to no user");
  refused("[public.\"1000:serve/weights\"]\nuids = 1001", "numbers in brackets");
  refused("[public.\"1000:serve/weights\"]\nuids = [-1]", "whole number");
  refused("[public.\"1000:serve/weights\"]\nusers = [1]", "unknown key 'users'");
  refused("public = 1", "[public.");
}
