// SPDX-License-Identifier: Apache-2.0
// Law 8 in the books: long requests are served in portions, and what one user or process takes leaves room for others.
#include <set>

#include "base/sys_process.hpp"
#include "daemon/ticket.hpp"
#include "tests/daemon/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;
using shmb::daemon::Config;

namespace {

// A system broker with a table of so many descriptors, 8 of them its reserve.
BrokerFacts facts_of(std::uint64_t table) {
  BrokerFacts facts;
  facts.descriptors_limit = table;
  return facts;
}
Config with_reserve(Config config) {
  config.descriptors_reserved = 8;
  return config;
}

std::size_t create_all(Client& client, std::size_t most) {
  std::size_t made = 0;
  while (made < most && client.create().status == Status::ok) ++made;
  return made;
}

}  // namespace

TEST_CASE("a batch is served a few elements in a turn, and its reply is whole") {
  World world;
  Client client = world.client();
  std::vector<CreateWish> wishes(SHMBW_MAX_BATCH);
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    wishes[i].name = "r" + std::to_string(i);
    if (i % 50 == 7) wishes[i].length = UINT64_MAX;
  }
  const auto created = client.create_many(wishes);
  CHECK(world.turns >= 30);
  REQUIRE(created.size() == wishes.size());
  for (std::size_t i = 0; i < created.size(); ++i) {
    CAPTURE(i);
    if (wishes[i].length == UINT64_MAX) {
      CHECK(created[i].status == Status::invalid);
      continue;
    }
    CHECK(created[i].status == Status::ok);
    CHECK(client.attach_name("", wishes[i].name, kWrite).reply.region.id == created[i].ref().id);
  }
}

TEST_CASE("a long table is counted and shown in portions, and all of it comes once") {
  World world;
  Client client = world.client(), other = world.client();
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 10; ++i)
    for (const Created& each : client.create_many(std::vector<CreateWish>(SHMBW_MAX_BATCH))) ids.insert(each.ref().id);
  world.turns = 0;
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_REGIONS;
  auto first = client.list(wish).fixed<shmbw_list_reply>();
  CHECK(world.turns >= 4);
  CHECK(first.total_count == ids.size());
  CHECK(first.total_bytes == 4096 * ids.size());
  std::set<std::uint64_t> seen;
  std::size_t rows = 0;
  for (const auto& row : client.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS)) {
    seen.insert(row.region.id);
    ++rows;
  }
  CHECK(rows == ids.size());
  CHECK(seen == ids);
  CHECK(other.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == ids.size());
}

TEST_CASE("few wanted rows of a long table are found in portions") {
  World world(system_config());
  Client many = world.client(1000), few = world.client(2000);
  for (int i = 0; i < 10; ++i) many.create_many(std::vector<CreateWish>(SHMBW_MAX_BATCH));
  const auto wanted = few.create().ref();
  const auto rows = few.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].region.id == wanted.id);
}

TEST_CASE("the cells of a large lane are written in portions; a session that ends meanwhile holds nobody up") {
  World world;
  Client client = world.client(), second = world.client();
  shmbw_pool_create wish{};
  wish.lane_bytes = 9 << 20;
  Packet& made = client.call(SHMBW_OP_POOL_CREATE, wish);
  REQUIRE(made.status() == Status::ok);
  const std::uint64_t pool = made.fixed<shmbw_pool_create_reply>().pool;
  shmbw_pool_join join{};
  join.pool = pool;
  REQUIRE(second.call(SHMBW_OP_POOL_JOIN, join).status() == Status::ok);
  shmbw_queue_open open{};
  open.pool = pool;
  open.kind = SHMBW_QUEUE_KIND_CLAIM;
  open.flags = SHMBW_QUEUE_OPEN_WRITER;
  open.cells = 65'536;
  open.cell_size = 128;
  open.name_len = 1;
  // The first turn alone, of a session that goes then.
  std::vector<std::byte> buffer(1024);
  wire::Writer out(buffer);
  out.begin(SHMBW_OP_QUEUE_OPEN, 5, Status::ok, open);
  out.text("q");
  world.books->packet(*second.session(), *wire::open_packet(out.finish(0), 0, wire::Direction::request));
  CHECK(second.link().yields);
  second.end_of_file();
  world.turns = 0;
  CHECK(client.call(SHMBW_OP_QUEUE_OPEN, open, "q").status() == Status::ok);
  CHECK(world.turns >= 60);
  second.pidfd();
  second.forget();
  client.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{pool, 0, 0});
  REQUIRE(*sys::poll_readable(world.books->wake_fd(), 10 * kSecond));
  world.books->woken();
}

TEST_CASE("one user may have half of the table, the next one a third of what is left, and everybody is let in") {
  World world(with_reserve(system_config()), facts_of(1008));
  Client greedy = world.client(1000);
  const std::size_t first = create_all(greedy, 5000);
  CHECK(first >= 480);
  CHECK(first <= 500);
  const Error refused = greedy.create().error;
  CHECK(refused.status == Status::no_descriptors);
  CHECK(refused.sentence.find("uid 1000") != refused.sentence.npos);
  CHECK(refused.sentence.find("limits.uid.1000.descriptors") != refused.sentence.npos);
  Client second = world.client(2000);
  const std::size_t next = create_all(second, 5000);
  CHECK(next >= 150);
  CHECK(next <= 180);
  Client third = world.client(3000);
  CHECK(third.create().status == Status::ok);
  // What is given back can be had again.
  for (const auto& row : greedy.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS)) greedy.release(row.region);
  CHECK(greedy.create().status == Status::ok);
}

TEST_CASE("a user's share of the table is what the configuration says, and binds neither root nor a private broker") {
  Config config = with_reserve(system_config());
  config.limits.uid_descriptors = 50;
  config.limits.uid[2000].descriptors = 20;
  World world(config, facts_of(1008));
  Client one = world.client(1000), two = world.client(2000), root = world.client(0);
  CHECK(create_all(one, 100) == 48);
  CHECK(create_all(two, 100) == 18);
  CHECK(create_all(root, 700) == 700);
  World own(with_reserve(private_config()), facts_of(1008));
  Client client = own.client(1000);
  CHECK(create_all(client, 900) == 900);
}

TEST_CASE("who comes when the table is full is told so in answer to HELLO, and root is served") {
  World world(with_reserve(system_config()), facts_of(108));
  Client root = world.client(0);
  create_all(root, 1000);
  CHECK(root.create().error.sentence.find("descriptors") != std::string::npos);
  Client late = world.silent(1000);
  REQUIRE(late.session() != nullptr);
  const Packet& answer = late.hello();
  CHECK(answer.status() == Status::no_descriptors);
  CHECK(answer.error().sentence.find("raise descriptors") != std::string::npos);
  late.close();
  Client again = world.client(0);
  CHECK(again.status().descriptors_limit == 108);
}

TEST_CASE("a session has a share of its user's tickets; what it leaves counts for the user alone") {
  Config config = system_config();
  config.limits.uid_tickets = 10;
  config.limits.session_tickets = 4;
  World world(config);
  Client greedy = world.client(), other = world.client();
  const auto region = greedy.create({.name = "r", .flags = 0}).ref(), own = other.create().ref();
  for (int i = 0; i < 4; ++i) CHECK(greedy.ticket(region).status() == Status::ok);
  Packet& refused = greedy.ticket(region);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_SESSION);
  CHECK(refused.error().sentence.find("limits.session_tickets") != std::string::npos);
  const auto used = Client::ticket_of(other.ticket(own));
  CHECK(other.attach_ticket(used).status == Status::ok);
  greedy.die();
  CHECK(other.status().tickets == 4);
  for (int i = 0; i < 4; ++i) CHECK(other.ticket(own).status() == Status::ok);
  CHECK(other.ticket(own).error().shortage.scope == SHMBW_SCOPE_SESSION);
  Client third = world.client();
  const auto more = third.create().ref();
  CHECK(third.ticket(more).status() == Status::ok);
  CHECK(third.ticket(more).status() == Status::ok);
  CHECK(third.ticket(more).error().shortage.scope == SHMBW_SCOPE_UID);
  world.advance(10 * kMinute);
  CHECK(third.status().tickets == 0);
  CHECK(third.ticket(more).status() == Status::ok);
}
