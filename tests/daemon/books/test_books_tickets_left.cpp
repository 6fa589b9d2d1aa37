// SPDX-License-Identifier: Apache-2.0
// Tickets that dead sessions leave: what one session may have, what a full user is told, and who may end which.
#include <vector>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;

namespace {

constexpr std::uint32_t kOwnerGiven = SHMBW_TICKETS_RELEASE_OWNER_GIVEN, kHeld = SHMBW_TICKETS_RELEASE_HELD;

Config with_tickets(std::uint64_t of_user) {
  Config config = system_config();
  config.limits.uid_tickets = of_user;
  return config;
}

// As the library asks: until the broker has looked at all.
shmbw_tickets_release_reply end_all(Client& client, shmbw_tickets_release wish = {}, int* requests = nullptr) {
  shmbw_tickets_release_reply all{};
  do {
    Packet& reply = client.release_tickets(wish);
    REQUIRE(reply.status() == Status::ok);
    const auto part = reply.fixed<shmbw_tickets_release_reply>();
    CHECK(part.tickets <= 64);
    all.tickets += part.tickets;
    all.regions += part.regions;
    all.bytes_freed += part.bytes_freed;
    all.held += part.held;
    REQUIRE((part.next == 0 || part.next > wish.cursor));
    wish.cursor = part.next;
    if (requests) ++*requests;
  } while (wish.cursor != 0);
  return all;
}

shmbw_tickets_release of_user(std::uint32_t uid, std::uint32_t flags = 0) {
  shmbw_tickets_release wish{};
  wish.owner_uid = uid;
  wish.flags = kOwnerGiven | flags;
  return wish;
}

// A process makes as many tickets as it may, and dies.
std::size_t make_all_and_die(World& world, std::uint32_t uid = 1000) {
  Client maker = world.client(uid);
  const auto region = maker.create().ref();
  std::size_t made = 0;
  while (maker.ticket(region).status() == Status::ok) ++made;
  maker.die();
  return made;
}

shmbw_uid_record own_uid_row(Client& client) {
  const auto rows = client.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS);
  REQUIRE(rows.size() == 1);
  return rows.front();
}

}  // namespace

TEST_CASE(
    "by default a session may have a quarter of its user's tickets, rounded up, also of a user with its own limit") {
  Config config = with_tickets(10);
  config.limits.uid[2000].tickets = 17;
  config.limits.uid[3000].tickets = 0;
  World world(config);
  CHECK(make_all_and_die(world) == 3);
  CHECK(make_all_and_die(world, 2000) == 5);
  CHECK(make_all_and_die(world, 3000) == 0);
  Client client = world.client(2000);
  const auto row = own_uid_row(client);
  CHECK(row.tickets == 5);
  CHECK(row.tickets_left == 5);
  CHECK(row.tickets_limit == 17);
  CHECK(row.session_tickets == 5);
}

TEST_CASE("one process that takes 16,384 tickets and dies leaves three quarters to its user") {
  World world(system_config());
  CHECK(make_all_and_die(world) == 4096);
  Client next = world.client();
  CHECK(next.ticket(next.create().ref()).status() == Status::ok);
}

TEST_CASE("processes that take their share and die fill their user; the refusal names what ends that, and it does") {
  World world(with_tickets(10));
  std::size_t left = 0;
  while (const std::size_t made = make_all_and_die(world)) left += made;
  CHECK(left == 10);
  Client next = world.client(), other = world.client(2000);
  const auto region = next.create().ref();
  Packet& refused = next.ticket(region);
  CHECK(refused.status() == Status::limit);
  const Error error = refused.error();
  CHECK(error.shortage.scope == SHMBW_SCOPE_UID);
  CHECK(error.shortage.limit == 10);
  CHECK(error.shortage.used == 10);
  CHECK(
      error.sentence ==
      "limit: tickets of uid 1000: asked 1, used 10 of 10; `shmbroker release --tickets` ends the 10 of them that were "
      "left by sessions that have ended, or raise limits.uid.1000.tickets");
  CHECK(other.ticket(other.create().ref()).status() == Status::ok);
  const auto ended = end_all(next);
  CHECK(ended.tickets == 10);
  CHECK(ended.regions == 4);
  CHECK(ended.bytes_freed == 4 * 4096);
  CHECK(ended.held == 0);
  CHECK(own_uid_row(next).tickets_left == 0);
  CHECK(next.ticket(region).status() == Status::ok);
  CHECK(other.status().tickets == 2);
}

TEST_CASE("a user whose living sessions hold all its tickets is advised to end some, not about left tickets") {
  World world(with_tickets(4));
  std::vector<Client> makers;
  for (int i = 0; i < 4; ++i) {
    makers.push_back(world.client());
    CHECK(makers.back().ticket(makers.back().create().ref()).status() == Status::ok);
  }
  Packet& own_share = makers[0].ticket(makers[0].create().ref());
  CHECK(own_share.error().shortage.scope == SHMBW_SCOPE_SESSION);
  CHECK(
      own_share.error().sentence ==
      "limit: tickets of this session: asked 1, used 1 of 1; end tickets that nobody will use (shmb_ticket_revoke), or "
      "raise limits.session_tickets and limits.uid.1000.tickets");
  Client late = world.client();
  CHECK(late.ticket(late.create().ref()).error().sentence ==
        "limit: tickets of uid 1000: asked 1, used 4 of 4; end tickets that nobody will use (shmb_ticket_revoke), or "
        "raise limits.uid.1000.tickets");
}

TEST_CASE("tickets of a living session stay, unless they are asked for as well") {
  World world(system_config());
  Client maker = world.client(), taker = world.client(), guest = world.client(2000), operator_ = world.client();
  const auto region = maker.create().ref();
  const auto own = Client::ticket_of(maker.ticket(region));
  const auto lent = Client::ticket_of(maker.ticket(region, kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION));
  const auto result = Client::ticket_of(
      maker.ticket(region, kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION, taker.id));  // as of a rank's result
  auto ended = end_all(operator_);
  CHECK(ended.tickets == 0);
  CHECK(ended.held == 3);
  maker.die();
  CHECK(own_uid_row(operator_).tickets == 2);
  CHECK(own_uid_row(operator_).tickets_left == 1);
  ended = end_all(operator_);
  CHECK(ended.tickets == 1);
  CHECK(ended.held == 1);
  CHECK(ended.regions == 0);
  CHECK(guest.attach_ticket(own).status == Status::not_found);
  CHECK(guest.attach_ticket(lent).status == Status::not_found);
  REQUIRE(guest.attach_ticket(result).status == Status::ok);
  guest.close();
  CHECK(operator_.status().regions == 0);

  const auto again = operator_.create().ref();
  const auto mine = Client::ticket_of(operator_.ticket(again));
  CHECK(end_all(taker).tickets == 0);
  CHECK(end_all(taker, of_user(1000, kHeld)).tickets == 1);
  CHECK(operator_.attach_ticket(mine).status == Status::not_found);
  taker.die();
}

TEST_CASE("a ticket that ends with another session is that session's until its end, in whatever order they die") {
  for (const bool maker_first : {true, false}) {
    CAPTURE(maker_first);
    World world(system_config());
    Client maker = world.client(), taker = world.client(), last = world.client();
    maker.ticket(maker.create().ref(), kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION, taker.id);
    (maker_first ? maker : taker).die();
    CHECK(own_uid_row(last).tickets_left == 0);
    CHECK(end_all(last).tickets == 0);
    (maker_first ? taker : maker).die();
    CHECK(own_uid_row(last).tickets == 0);
    CHECK(own_uid_row(last).tickets_left == 0);
  }
}

TEST_CASE("a left ticket is used up, revoked and expires as others do, and is then not counted any more") {
  World world(system_config());
  Client maker = world.client(1000), guest = world.client(2000), mate = world.client(1000);
  REQUIRE(maker.make_group({.name = "job"}).status() == Status::ok);
  REQUIRE(maker.join("job").status() == Status::ok);
  REQUIRE(mate.join("job").status() == Status::ok);
  const auto region = maker.create().ref();
  const auto used = Client::ticket_of(maker.ticket(region)), revoked = Client::ticket_of(maker.ticket(region));
  maker.ticket(region, kRead, 1, kMinute);
  maker.die();
  CHECK(own_uid_row(mate).tickets_left == 3);
  CHECK(guest.attach_ticket(used).status == Status::ok);
  CHECK(own_uid_row(mate).tickets_left == 2);
  CHECK(mate.revoke(revoked).status() == Status::ok);
  CHECK(own_uid_row(mate).tickets_left == 1);
  world.advance(kMinute);
  CHECK(own_uid_row(mate).tickets_left == 0);
  CHECK(end_all(mate).tickets == 0);
}

TEST_CASE("a session that was cut off and taken over holds its tickets all the time") {
  World world(system_config());
  Client maker = world.client(1000, 77), operator_ = world.client(1000);
  const auto region = maker.create().ref();
  CHECK(maker.ticket(region).status() == Status::ok);
  maker.disconnect();
  CHECK(end_all(operator_).held == 1);
  Client again = world.silent(1000, 77);
  again.hello({.fork_session = maker.id, .fork_secret = maker.secret});
  maker.forget();
  CHECK(own_uid_row(operator_).tickets_left == 0);
  CHECK(end_all(operator_).held == 1);
  CHECK(operator_.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).at(0).maker == again.id);
  again.die();
  CHECK(end_all(operator_).tickets == 1);
}

TEST_CASE("another user's tickets are ended on the admin socket alone") {
  World world(system_config());
  make_all_and_die(world, 1000);
  Client stranger = world.client(2000), root = world.client(0), owner = world.client(1000), admin = world.admin();
  for (Client* each : {&stranger, &root}) {
    Packet& refused = each->release_tickets(of_user(1000));
    CHECK(refused.status() == Status::denied);
    CHECK(refused.error().sentence.find("tickets of uid 1000") != std::string::npos);
    CHECK(refused.error().sentence.find("admin socket") != std::string::npos);
    CHECK(end_all(*each).tickets == 0);  // their own
  }
  CHECK(owner.status().tickets == 4096);
  CHECK(end_all(admin).tickets == 0);
  CHECK(end_all(admin, of_user(1000)).tickets == 4096);
  CHECK(owner.status().tickets == 0);
}

TEST_CASE("tickets to one region and to the regions of one group are ended by themselves") {
  World world(system_config());
  Client maker = world.client(), guest = world.client(2000), operator_ = world.client();
  const auto made = maker.make_group({.name = "job"}).fixed<shmbw_group_create_reply>();
  const auto first = maker.create({.group = made.group}).ref(), second = maker.create({.group = made.group}).ref(),
             other = maker.create().ref();
  for (const auto& region : {first, first, second, other}) CHECK(maker.ticket(region).status() == Status::ok);
  // Made by another user, to the same region.
  REQUIRE(
      guest.attach_ticket(Client::ticket_of(maker.ticket(first, kRead | SHMBW_RIGHT_SHARE)), kRead | SHMBW_RIGHT_SHARE)
          .status == Status::ok);
  CHECK(guest.ticket(first).status() == Status::ok);
  maker.die();
  shmbw_tickets_release wish{};
  wish.region = {first.id, first.generation + 1, 0};
  CHECK(end_all(operator_, wish).tickets == 0);
  wish.region = {first.id, 0, 0};
  CHECK(end_all(operator_, wish).tickets == 2);
  wish.region = {};
  wish.group = made.group + 1000;
  CHECK(end_all(operator_, wish).tickets == 0);
  wish.group = made.group;
  const auto ended = end_all(operator_, wish);
  CHECK(ended.tickets == 1);
  CHECK(ended.regions == 1);
  CHECK(operator_.status().tickets == 2);
  guest.die();
  CHECK(operator_.status().tickets == 2);
  CHECK(end_all(operator_).tickets == 1);
  CHECK(end_all(operator_).tickets == 0);
  CHECK(operator_.status().regions == 1);  // the guest's ticket holds it
}

TEST_CASE("many tickets are ended and listed in portions, also where most are another user's") {
  Config config = system_config();
  config.limits.session_tickets = 4096;
  World world(config);
  Client other = world.client(2000);
  const auto theirs = other.create().ref();
  Client maker = world.client(1000);
  const auto region = maker.create().ref();
  for (int i = 0; i < 1500; ++i) {
    REQUIRE(other.ticket(theirs).status() == Status::ok);
    if (i % 10 == 0) REQUIRE(maker.ticket(region).status() == Status::ok);
  }
  maker.die();
  Client owner = world.client(1000), admin = world.admin();
  world.turns = 0;
  std::size_t pages = 0;
  CHECK(admin.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS, {}, &pages).size() == 1650);
  CHECK(pages >= 12);
  CHECK(world.turns >= 3);
  CHECK(owner.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).size() == 150);
  int requests = 0;
  CHECK(end_all(owner, {}, &requests).tickets == 150);
  CHECK(requests >= 4);  // at most 512 looks, and 64 ends, in each
  CHECK(requests <= 8);
  CHECK(owner.status().tickets == 1500);
}

TEST_CASE("a ticket's row names the process that made it, and says when that has ended") {
  World world(system_config());
  Client maker = world.client(1000, 4711), reader = world.client(1000);
  maker.ticket(maker.create().ref());
  auto rows = reader.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].maker == maker.id);
  CHECK(rows[0].maker_pid == 4711);
  CHECK(rows[0].maker_uid == 1000);
  maker.die();
  rows = reader.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].maker == 0);
  CHECK(rows[0].maker_pid == 0);
}
