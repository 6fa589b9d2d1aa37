// SPDX-License-Identifier: Apache-2.0
// Tickets: across uids, by their holder only, for as long and as often as they say.
#include "daemon/kit/secret.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;

namespace {
constexpr std::uint32_t kWithSession = SHMBW_TICKET_CREATE_WITH_SESSION;
}

TEST_CASE("a ticket carries its rights to another uid, once by default") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref(), kRead | SHMBW_RIGHT_SHARE));
  CHECK(guest.attach_ticket(ticket, kWrite).status == Status::denied);  // not used up by that
  Attached attached = guest.attach_ticket(ticket, kRead | SHMBW_RIGHT_SHARE);
  REQUIRE(attached.status == Status::ok);
  CHECK(attached.reply.rights == (kRead | SHMBW_RIGHT_SHARE));
  CHECK(guest.attach_ticket(ticket).status == Status::not_found);
  // By its lease the guest may attach again, to no more than it has.
  CHECK(guest.attach_id(created.ref()).status == Status::ok);
  CHECK(guest.attach_id(created.ref(), kWrite).status == Status::denied);
  CHECK(guest.ticket(created.ref(), kWrite).status() == Status::denied);
  CHECK(guest.ticket(created.ref(), kRead).status() == Status::ok);
  CHECK(guest.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 1);
  CHECK(guest.release(created.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::denied);
}

TEST_CASE("uses are counted down by successful attaches only") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref(), kRead, 3));
  CHECK(owner.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).at(0).uses_left == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(guest.attach_ticket(ticket, kWrite).status == Status::denied);
    CHECK(guest.attach_ticket(ticket).status == Status::ok);
  }
  CHECK(guest.attach_ticket(ticket).status == Status::not_found);
  CHECK(owner.status().tickets == 0);
}

TEST_CASE("a session without a lease watches a region by a ticket, until the region is ready or the ticket over") {
  World world(private_config());
  Client owner = world.client(1000), guest = world.client(1000);
  owner.make_group({.name = "job"});
  owner.join("job");
  const Created created = owner.create();
  const auto ticket = Client::ticket_of(owner.ticket(created.ref(), kRead, 2));
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_REGION;
  wish.events = SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_GONE;
  std::ranges::copy(ticket, wish.ticket);
  const auto watched = [&] { return guest.call(SHMBW_OP_WATCH, wish).fixed<shmbw_watch_reply>(); };
  CHECK(watched().state == 0);
  owner.ready(created.ref());
  REQUIRE(guest.link().events.size() == 1);
  CHECK(guest.link().events[0].op() == (SHMBW_EVENT_REGION_READY | SHMBW_EVENT));
  CHECK(watched().state == SHMBW_WATCH_EVENT_READY);
  CHECK(owner.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).at(0).uses_left == 2);
  owner.revoke(ticket);
  REQUIRE(guest.link().events.size() == 3);  // one for each watch
  for (const std::size_t i : {1, 2}) {
    CHECK(guest.link().events[i].op() == (SHMBW_EVENT_REGION_GONE | SHMBW_EVENT));
    CHECK(guest.link().events[i].fixed<shmbw_region_gone_event>().region.id == created.ref().id);
  }
  CHECK(owner.status().watches == 0);
  CHECK(owner.status().regions == 1);
  CHECK(guest.call(SHMBW_OP_WATCH, wish).status() == Status::not_found);
}

TEST_CASE("a watch by a ticket that ends first leaves the ticket as it is") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  const Created created = owner.create();
  const auto ticket = Client::ticket_of(owner.ticket(created.ref(), kRead));
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_REGION;
  wish.events = SHMBW_WATCH_EVENT_GONE;
  std::ranges::copy(ticket, wish.ticket);
  CHECK(guest.call(SHMBW_OP_WATCH, wish).status() == Status::ok);
  guest.die();
  CHECK(owner.status().watches == 0);
  owner.revoke(ticket);
  owner.release(created.ref());
  CHECK(owner.status().regions == 0);
}

TEST_CASE("a ticket ends at its time, to the nanosecond, and gives its region back") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  Packet& reply = owner.ticket(created.ref(), kWrite, 0, kMinute);
  CHECK(reply.fixed<shmbw_ticket_create_reply>().expires == world.now + kMinute);
  auto ticket = Client::ticket_of(reply);
  owner.release(created.ref());
  CHECK(owner.status().regions == 1);  // the ticket holds it
  world.now += kMinute;                // nobody called tick yet
  CHECK(guest.attach_ticket(ticket, kWrite).status == Status::not_found);
  world.advance(0);
  CHECK(owner.status().regions == 0);
  CHECK(owner.status().tickets == 0);
}

TEST_CASE("the default lifetime is the configuration's, and more than its most is refused") {
  World world;
  Client owner = world.client(1000);
  Created created = owner.create();
  CHECK(owner.ticket(created.ref()).fixed<shmbw_ticket_create_reply>().expires == world.now + 10 * kMinute);
  CHECK(owner.ticket(created.ref(), kRead, 0, 8LL * 24 * 60 * kMinute).status() == Status::limit);
  CHECK(owner.ticket(created.ref(), kRead, 0, -1).status() == Status::invalid);
  CHECK(owner.ticket(created.ref(), 0).status() == Status::invalid);
  CHECK(owner.ticket(created.ref(), SHMBW_RIGHT_MAP_WRITE).status() == Status::invalid);
  CHECK(owner.ticket(created.ref(), 1U << 12).status() == Status::unknown_flags);
}

TEST_CASE("the sender may die after sending") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  owner.die();
  Attached attached = guest.attach_ticket(ticket, kWrite);
  CHECK(attached.status == Status::ok);
  CHECK(attached.reply.region.id == created.ref().id);
}

TEST_CASE("random, used up, expired and changed tickets are one answer") {
  World world;
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  auto used = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  auto expired = Client::ticket_of(owner.ticket(created.ref(), kWrite, 0, kMinute));
  auto live = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  guest.attach_ticket(used, kWrite);
  world.advance(kMinute);
  auto sentence = [&](std::array<std::uint8_t, 16> ticket) {
    Attached refused = guest.attach_ticket(ticket, kWrite);
    CHECK(refused.status == Status::not_found);
    return refused.error.sentence;
  };
  std::string first = sentence({});
  CHECK(sentence(used) == first);
  CHECK(sentence(expired) == first);
  for (std::size_t byte = 0; byte < 16; ++byte) {
    auto changed = live;
    changed[byte] ^= 0x10;
    CHECK(sentence(changed) == first);
  }
  CHECK(guest.attach_ticket(live, kWrite).status == Status::ok);
}

TEST_CASE("a lease without share gives no ticket, and none carries map_write where writing is closed") {
  World world(private_config());
  Client owner = world.client(1000), second = world.client(1000);
  Created created = owner.create();
  CHECK(second.attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(second.ticket(created.ref()).status() == Status::denied);
  auto writing = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  owner.ready(created.ref());
  second.ready(created.ref());
  CHECK(world.client(1000).attach_id(created.ref()).status == Status::ok);
  CHECK(owner.ticket(created.ref(), kWrite).status() == Status::write_closed);
  CHECK(second.attach_ticket(writing, kWrite).status == Status::write_closed);
  CHECK(second.attach_ticket(writing, kRead).status == Status::ok);
  CHECK(owner.publish(created.ref()).status() == Status::ok);
  CHECK(owner.ticket(created.ref(), kWrite).status() == Status::write_closed);
  CHECK(owner.ticket(created.ref(), kRead).status() == Status::ok);
}

TEST_CASE("tickets are paid by the uid that acts and bounded there") {
  Config config = private_config();
  config.limits.uid_tickets = config.limits.session_tickets = 2;
  World world(config);
  Client owner = world.client(1000);
  Created created = owner.create();
  owner.ticket(created.ref());
  owner.ticket(created.ref(), kRead, 0, kMinute);
  Packet& refused = owner.ticket(created.ref());
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_TICKETS);
  world.advance(kMinute);
  CHECK(owner.ticket(created.ref()).status() == Status::ok);
  owner.die();
  // A second life of that uid still pays for what the first one left.
  Client again = world.client(1000);
  Created other = again.create();
  CHECK(again.ticket(other.ref()).status() == Status::limit);
}

TEST_CASE("its maker revokes a ticket with its remaining uses; what was attached by it stays") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref(), kRead, 3));
  REQUIRE(guest.attach_ticket(ticket).status == Status::ok);
  Packet& revoked = owner.revoke(ticket);
  REQUIRE(revoked.status() == Status::ok);
  CHECK(revoked.fixed<shmbw_ticket_revoke_reply>().uses_left == 2);
  CHECK(guest.attach_ticket(ticket).status == Status::not_found);
  CHECK(guest.attach_id(created.ref()).status == Status::ok);  // by its lease
  CHECK(owner.status().tickets == 0);
  CHECK(owner.revoke(ticket).status() == Status::not_found);
  guest.close();

  // It held its region.
  ticket = Client::ticket_of(owner.ticket(created.ref()));
  owner.release(created.ref());
  CHECK(owner.status().regions == 1);
  CHECK(owner.revoke(ticket).status() == Status::ok);
  CHECK(owner.status().regions == 0);
}

TEST_CASE("a ticket made with its session ends with it, and the region with the ticket; another ticket stays") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000), reader = world.client(2000);
  Created created = owner.create(), other = owner.create();
  const auto lent = Client::ticket_of(owner.ticket(created.ref(), kRead, 3, 0, kWithSession));
  const auto given = Client::ticket_of(owner.ticket(other.ref(), kRead, 3));
  REQUIRE(guest.attach_ticket(lent).status == Status::ok);
  owner.release(created.ref());
  owner.release(other.ref());
  CHECK(guest.status().tickets == 2);
  owner.die();
  CHECK(guest.status().tickets == 1);
  CHECK(guest.attach_ticket(lent).status == Status::not_found);
  CHECK(reader.attach_ticket(given).status == Status::ok);
  CHECK(guest.status().regions == 2);  // by what was attached
  guest.close();
  CHECK(reader.status().regions == 1);
}

TEST_CASE("a ticket made with its session can be used up, revoked and over before, in any order") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  const auto lend = [&](std::uint32_t uses, std::int64_t life = 0) {
    return Client::ticket_of(owner.ticket(created.ref(), kRead, uses, life, kWithSession));
  };
  const auto first = lend(1), second = lend(1), third = lend(2), fourth = lend(1, kMinute), fifth = lend(1);
  CHECK(guest.attach_ticket(second).status == Status::ok);
  CHECK(owner.revoke(third).status() == Status::ok);
  world.advance(kMinute);
  CHECK(guest.status().tickets == 2);
  CHECK(guest.attach_ticket(fourth).status == Status::not_found);
  CHECK(guest.attach_ticket(fifth).status == Status::ok);
  CHECK(guest.attach_ticket(first).status == Status::ok);
  CHECK(guest.status().tickets == 0);
  (void)lend(1);
  owner.die();
  CHECK(guest.status().tickets == 0);
}

TEST_CASE("a ticket made with its session ends with the process, though a child holds the socket") {
  World world(system_config());
  Client owner = world.client(1000), guest = world.client(2000);
  Created created = owner.create();
  const auto lent = Client::ticket_of(owner.ticket(created.ref(), kRead, 1, 0, kWithSession));
  owner.pidfd();
  CHECK(guest.status().tickets == 0);
  CHECK(guest.attach_ticket(lent).status == Status::not_found);
  CHECK(guest.status().regions == 1);  // the heir's
}

TEST_CASE("a ticket made to end with another session of its user does so, and outlives its maker") {
  World world(system_config());
  Client maker = world.client(1000), taker = world.client(1000), guest = world.client(2000);
  Created created = maker.create();
  const auto lend = [&](std::uint64_t session, std::uint32_t flags = kWithSession) -> Packet& {
    return maker.ticket(created.ref(), kRead, 2, 0, flags, session);
  };
  const auto first = Client::ticket_of(lend(taker.id)), second = Client::ticket_of(lend(taker.id));
  // Another user's, none that there is, one that says nothing of its end.
  for (const std::uint64_t nobody : {guest.id, taker.id + 1000, ~std::uint64_t{0}}) {
    Packet& refused = lend(nobody);
    CHECK(refused.status() == Status::not_found);
    CHECK(refused.error().sentence.find("session " + std::to_string(nobody)) != std::string::npos);
  }
  CHECK(lend(taker.id, 0).status() == Status::invalid);
  CHECK(guest.status().tickets == 2);
  CHECK(taker.revoke(second).status() == Status::ok);  // it is what it would leave
  maker.die();
  REQUIRE(guest.attach_ticket(first).status == Status::ok);
  guest.close();
  Client last = world.client(1000);
  CHECK(last.status().tickets == 1);
  taker.die();
  CHECK(last.status().tickets == 0);
  CHECK(last.status().regions == 0);
}

TEST_CASE("a ticket cannot be made to end with a session whose process is gone, though a child holds its socket") {
  World world(system_config());
  Client maker = world.client(1000), parent = world.client(1000);
  Created created = maker.create(), kept = parent.create();
  parent.pidfd();
  CHECK(maker.ticket(created.ref(), kRead, 1, 0, kWithSession, parent.id).status() == Status::not_found);
  CHECK(maker.status().tickets == 0);
}

TEST_CASE("the successor of a cut session ends the tickets that others made to end with it, and did not make them") {
  World world(system_config());
  Client maker = world.client(1000), taker = world.client(1000, 77), guest = world.client(2000);
  Created created = maker.create();
  const auto lent = Client::ticket_of(maker.ticket(created.ref(), kRead, 2, 0, kWithSession, taker.id));
  taker.disconnect();
  Client again = world.silent(1000, 77);
  again.hello({.fork_session = taker.id, .fork_secret = taker.secret});
  taker.forget();
  REQUIRE(guest.attach_ticket(lent).status == Status::ok);
  guest.close();
  CHECK(maker.status().tickets == 1);
  again.die();
  CHECK(maker.status().tickets == 0);
  const auto own = Client::ticket_of(maker.ticket(created.ref(), kRead));
  CHECK(maker.revoke(own).status() == Status::ok);
}

TEST_CASE(
    "the successor of a cut session may revoke what that one made, also what ends with another session, or with none") {
  World world(system_config());
  Client taker = world.client(1000), stranger = world.client(1000), maker = world.client(1000, 77);
  Created created = taker.create();
  REQUIRE(maker.attach_id(created.ref(), kRead | SHMBW_RIGHT_SHARE).status == Status::ok);  // and is in no group
  const auto with_taker = Client::ticket_of(maker.ticket(created.ref(), kRead, 2, 0, kWithSession, taker.id));
  const auto with_none = Client::ticket_of(maker.ticket(created.ref(), kRead, 2));
  maker.disconnect();
  Client again = world.silent(1000, 77);
  again.hello({.fork_session = maker.id, .fork_secret = maker.secret});
  maker.forget();
  again.disconnect();
  Client last = world.silent(1000, 77);
  last.hello({.fork_session = again.id, .fork_secret = again.secret});
  again.forget();
  CHECK(stranger.revoke(with_taker).status() != Status::ok);
  CHECK(last.revoke(with_taker).status() == Status::ok);
  CHECK(last.revoke(with_none).status() == Status::ok);
  CHECK(taker.status().tickets == 0);
}

TEST_CASE("the successor of a cut session has its tickets too") {
  World world(system_config());
  Client owner = world.client(1000, 77), guest = world.client(2000);
  Created created = owner.create();
  const auto lent = Client::ticket_of(owner.ticket(created.ref(), kRead, 2, 0, kWithSession));
  owner.disconnect();
  Client again = world.silent(1000, 77);
  again.hello({.fork_session = owner.id, .fork_secret = owner.secret});
  owner.forget();
  REQUIRE(guest.attach_ticket(lent).status == Status::ok);
  CHECK(again.revoke(lent).status() == Status::ok);
  (void)Client::ticket_of(again.ticket(created.ref(), kRead, 2, 0, kWithSession));
  CHECK(guest.status().tickets == 1);
  again.die();
  CHECK(guest.status().tickets == 0);
}

TEST_CASE("a holder of a ticket's token may use it and not revoke it; a member of the maker's group may revoke it") {
  World world(system_config());
  Client owner = world.client(1000), other = world.client(1000), guest = world.client(2000), mate = world.client(2000);
  Packet& group = owner.make_group({.name = "job"});
  const auto made = group.fixed<shmbw_group_create_reply>();
  std::uint8_t copy[16];
  std::copy_n(made.token, 16, copy);
  REQUIRE(owner.join(copy).status() == Status::ok);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref()));
  for (Client* stranger : {&other, &guest, &mate}) CHECK(stranger->revoke(ticket).status() == Status::not_found);
  CHECK(owner.status().tickets == 1);
  REQUIRE(mate.join(copy).status() == Status::ok);
  owner.die();
  CHECK(mate.revoke(ticket).status() == Status::ok);
  CHECK(mate.status().tickets == 0);
}

TEST_CASE("a ticket that is over cannot be revoked, nor one made outside of every group by another session in none") {
  World world;
  Client owner = world.client(1000), reader = world.client(1000), other = world.client(1000);
  Created created = owner.create();
  auto over = Client::ticket_of(owner.ticket(created.ref(), kRead, 0, kMinute));
  world.now += kMinute;  // nobody called tick yet
  CHECK(owner.revoke(over).status() == Status::not_found);
  CHECK(owner.revoke({}).status() == Status::not_found);
  // A session that has attached is in no group.
  REQUIRE(reader.attach_id(created.ref(), kWrite | SHMBW_RIGHT_SHARE).status == Status::ok);
  auto ticket = Client::ticket_of(reader.ticket(created.ref(), kRead, 0, kMinute));
  CHECK(other.revoke(ticket).status() == Status::not_found);
  CHECK(reader.revoke(ticket).status() == Status::ok);
}

TEST_CASE("tickets of others are not listed, and no list shows the token") {
  World world;
  Client owner = world.client(1000), other = world.client(2000);
  Created created = owner.create();
  auto ticket = Client::ticket_of(owner.ticket(created.ref(), kWrite));
  CHECK(other.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).empty());
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_TICKETS;
  Packet& page = owner.list(wish);
  auto found = std::search(page.bytes.begin(), page.bytes.end(), reinterpret_cast<std::byte*>(ticket.data()),
                           reinterpret_cast<std::byte*>(ticket.data()) + 16);
  CHECK(found == page.bytes.end());
}

TEST_CASE("secrets differ, compare by value and hash by key") {
  auto a = daemon::Secret::draw(), b = daemon::Secret::draw(), key = daemon::Secret::draw();
  REQUIRE(a);
  CHECK(!a->same(*b));
  CHECK(a->same(daemon::Secret(*a)));
  CHECK(!a->zero());
  CHECK(daemon::Secret{}.zero());
  CHECK(daemon::SecretHash(*key)(*a) != daemon::SecretHash(*b)(*a));
  // SipHash-2-4's published vector for 16 bytes 00..0f under the key 00..0f.
  daemon::Secret count;
  for (std::uint8_t i = 0; i < 16; ++i) count.bytes[i] = i;
  CHECK(daemon::SecretHash(count)(count) == 0x3f2acc7f57c29bdbULL);
}
