// SPDX-License-Identifier: Apache-2.0
// The rate of creates of one user in system mode.
#include <doctest/doctest.h>

#include "daemon/kit/rate.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;
using shmb::daemon::Rate;

namespace {

Config slow(std::uint64_t per_second) {
  Config config = system_config();
  config.limits.uid_creates = per_second;
  config.file = "/etc/shmbroker.conf";
  return config;
}

// How many creates in a row succeed, at most `most`. Their regions stay.
std::uint32_t creates(Client& client, std::uint32_t most) {
  std::uint32_t made = 0;
  while (made < most && client.create().status == Status::ok) ++made;
  return made;
}

}  // namespace

TEST_CASE("a rate gives a second's worth at once, then one token after the other") {
  Rate rate;
  std::int64_t now = 5 * kSecond;
  for (int i = 0; i < 10; ++i) CHECK(rate.take(now, 10));
  CHECK(!rate.take(now, 10));
  CHECK(!rate.full(now));
  now += kSecond / 10;
  CHECK(rate.take(now, 10));
  CHECK(!rate.take(now, 10));
  now += 100 * kSecond;
  CHECK(rate.full(now));
  for (int i = 0; i < 10; ++i) CHECK(rate.take(now, 10));
  CHECK(!rate.take(now, 10));
  Rate fast;
  CHECK(fast.take(now, UINT64_C(1) << 40));
}

TEST_CASE("a user that makes regions too fast is refused with the limit and its key, and others are served") {
  World world(slow(20));
  Client one = world.client(1000), same = world.client(1000), other = world.client(2000), root = world.client(0);
  CHECK(creates(one, 12) == 12);
  CHECK(creates(same, 100) == 8);
  const Created refused = one.create();
  CHECK(refused.status == Status::limit);
  CHECK(refused.error.shortage.slot == SHMBW_SLOT_CREATES);
  CHECK(refused.error.shortage.scope == SHMBW_SCOPE_UID);
  CHECK(refused.error.shortage.scope_id == 1000);
  CHECK(refused.error.shortage.limit == 20);
  const std::string& said = refused.error.sentence;
  for (const char* part :
       {"uid 1000", "20", "ask again", "limits.uid.1000.creates", "/etc/shmbroker.conf", "kill -HUP"})
    CHECK_MESSAGE(said.find(part) != said.npos, said);
  CHECK(creates(other, 20) == 20);
  CHECK(creates(root, 100) == 100);
  world.advance(kSecond / 10);
  CHECK(creates(one, 100) == 2);
}

TEST_CASE("a user cannot get a new second's worth by coming again") {
  World world(slow(20));
  {
    Client client = world.client(1000);
    CHECK(creates(client, 100) == 20);
    client.die();
  }
  Client again = world.client(1000);
  CHECK(creates(again, 100) == 0);
  world.advance(kSecond);
  CHECK(creates(again, 100) == 20);
}

TEST_CASE("a reload changes the rate, for all or for one user, and 0 is no limit") {
  World world(slow(1));
  Client client = world.client(1000);
  CHECK(creates(client, 10) == 1);
  Config config = slow(1);
  config.limits.uid[1000].creates = 0;
  world.books->set_limits(config.limits);
  CHECK(creates(client, 100) == 100);
  world.books->set_limits(slow(5).limits);
  world.advance(kSecond);
  CHECK(creates(client, 100) == 5);
}

TEST_CASE("a private broker has no rate") {
  Config config = private_config();
  config.limits.uid_creates = 1;
  World world(config);
  Client client = world.client(1000);
  CHECK(creates(client, 100) == 100);
}
