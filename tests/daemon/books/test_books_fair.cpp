// SPDX-License-Identifier: Apache-2.0
// Law 8 in the books: long requests are served in portions, and what one user or process takes leaves room for others.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

#include "base/sys_process.hpp"
#include "daemon/ledger/ticket.hpp"
#include "tests/daemon/books/books_fixture.hpp"

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

// A batch about one region, over and over.
std::vector<std::byte> attach_packet(shmbw_region_ref region, std::uint32_t rights, std::size_t count,
                                     std::uint64_t tag = 1) {
  std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
  wire::Writer out(buffer);
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = rights;
  wish.region = region;
  out.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, tag, count);
  for (std::size_t i = 0; i < count; ++i) out.element(i, wish);
  buffer.resize(out.finish(0).size());
  return buffer;
}

template <class Reply>
std::size_t elements_with(const Packet& packet, Status status) {
  REQUIRE(packet.status() == Status::ok);
  const auto batch = wire::BatchView::open(packet.view());
  REQUIRE(batch);
  std::size_t found = 0;
  for (std::size_t i = 0; i < batch->count(); ++i)
    found += static_cast<Status>(batch->element<Reply>(i).value().outcome.status) == status;
  return found;
}

// How many descriptors this process may have, for a while.
class TableOf {
 public:
  explicit TableOf(rlim_t most) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now{most, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  TableOf(const TableOf&) = delete;
  TableOf& operator=(const TableOf&) = delete;
  ~TableOf() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// A socket whose close waits for a peer that reads nothing, for a minute or until that peer goes.
struct SlowToClose {
  Fd socket, peer;
  SlowToClose() {
    const Fd listener = Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener.get(), address, size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), address, &size) == 0);
    socket = Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), address, size) == 0);
    peer = Fd::adopt(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(peer);
    const std::vector<std::byte> block(1 << 16);
    while (::send(socket.get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
    const linger patience{1, 60};
    REQUIRE(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &patience, sizeof patience) == 0);
  }
};

std::size_t create_all(Client& client, std::size_t most) {
  std::size_t made = 0;
  while (made < most && client.create().status == Status::ok) ++made;
  return made;
}

}  // namespace

TEST_CASE("a batch is served a few elements in a turn, and its reply is whole") {
  World world;
  Client client = world.client();
  std::vector<CreateRequest> wishes(SHMBW_MAX_BATCH);
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
    for (const Created& each : client.create_many(std::vector<CreateRequest>(SHMBW_MAX_BATCH)))
      ids.insert(each.ref().id);
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
  for (int i = 0; i < 10; ++i) many.create_many(std::vector<CreateRequest>(SHMBW_MAX_BATCH));
  const auto wanted = few.create().ref();
  const auto rows = few.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].region.id == wanted.id);
}

TEST_CASE("the cells of a large lane are written in portions; a session that ends meanwhile delays no other") {
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
  open.kind = SHMBW_QUEUE_KIND_MPMC;
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
  // Descriptors that were given back are available again.
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

TEST_CASE("a client that comes when the table is full gets that in the reply to HELLO, and root is served") {
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

TEST_CASE("batches of readers that are under way leave other users the table") {
  const TableOf table(1024);
  World world(with_reserve(system_config()), facts_of(1000));
  Client owner = world.client(1000), bystander = world.client(2000);
  const auto region = owner.create().ref();
  const auto packet = attach_packet(region, kRead, SHMBW_MAX_BATCH);
  std::vector<Client> greedy;
  for (int i = 0; i < 10; ++i) greedy.push_back(world.client(1000));
  // Turn by turn, each of them in the middle of a batch.
  std::size_t whole = 0;
  for (int round = 0; round < 100; ++round) {
    for (Client& each : greedy) {
      if (each.turn(packet)) continue;
      REQUIRE(each.link().replies.size() == 2);  // HELLO's
      CHECK(elements_with<shmbw_attach_reply>(each.link().replies.back(), Status::ok) == SHMBW_MAX_BATCH);
      CHECK(each.link().replies.back().fds.size() == SHMBW_MAX_BATCH);
      each.link().replies.pop_back();
      ++whole;
    }
    Created made = bystander.create();
    CHECK(made.status == Status::ok);
    CHECK(bystander.attach_id(made.ref()).status == Status::ok);
    CHECK(bystander.release(made.ref()).status == Status::ok);
  }
  CHECK(whole >= 30);
  // The end of their sessions gives back all that is left of them.
  greedy.clear();
  CHECK(world.status().descriptors <= 16);
}

TEST_CASE("a private broker serves many batches of readers at once, though its table is small") {
  const TableOf table(1024);
  World world(with_reserve(private_config()), facts_of(600));
  Client owner = world.client();
  const auto region = owner.create({.flags = SHMBW_CREATE_MANY_WRITERS}).ref();
  const auto packet = attach_packet(region, kRead, SHMBW_MAX_BATCH);
  std::vector<Client> readers;
  for (int i = 0; i < 8; ++i) readers.push_back(world.client());
  std::vector<bool> done(readers.size());
  for (int round = 0; round < 40; ++round)
    for (std::size_t i = 0; i < readers.size(); ++i) {
      if (done[i] || readers[i].turn(packet)) continue;
      done[i] = true;
      CHECK(elements_with<shmbw_attach_reply>(readers[i].link().replies.back(), Status::ok) == SHMBW_MAX_BATCH);
      readers[i].link().replies.clear();
    }
  CHECK(std::ranges::count(done, true) == 8);
}

TEST_CASE("a reader that finds the table full gets limit, use and remedy, and nothing is booked") {
  World world(with_reserve(private_config()), facts_of(60));
  Client reader = world.client();
  const auto region = reader.create({.flags = SHMBW_CREATE_MANY_WRITERS}).ref();
  const auto packet = attach_packet(region, kRead, 100);
  while (reader.turn(packet)) continue;
  const Packet& reply = reader.link().replies.back();
  const std::size_t made = elements_with<shmbw_attach_reply>(reply, Status::ok);
  CHECK(made == reply.fds.size());
  CHECK(made > 40);
  CHECK(made + elements_with<shmbw_attach_reply>(reply, Status::no_descriptors) == 100);
  const auto batch = wire::BatchView::open(reply.view());
  wire::TextReader texts = batch->texts();
  const auto outcome = batch->element<shmbw_attach_reply>(made).value().outcome;
  const Error refused = wire::read_element_detail(outcome.status, texts.take(outcome.detail_len).value());
  CHECK(refused.shortage.limit == 60);
  CHECK(refused.shortage.used == 60);
  CHECK(refused.sentence.find("(ulimit -Hn) in the shell that starts the broker, and end pid ") != std::string::npos);
  for (const auto& row : reader.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES)) CHECK(row.count == made + 1);
}

TEST_CASE("a batch of readers counts for its user between its turns, and no longer than it lasts") {
  World world(with_reserve(system_config()), facts_of(1000));
  Client reader = world.client(1000), asker = world.client(2000);
  const auto region = reader.create().ref();
  const auto before = asker.status().descriptors;
  const auto packet = attach_packet(region, kRead, 30), writers = attach_packet(region, kWrite, 30);
  REQUIRE(reader.turn(packet));
  CHECK(asker.status().descriptors == before + 8);
  REQUIRE(reader.turn(packet));
  CHECK(asker.status().descriptors == before + 16);
  while (reader.turn(packet)) continue;
  CHECK(asker.status().descriptors == before);
  CHECK(reader.link().replies.back().fds.size() == 30);
  REQUIRE(reader.turn(writers));
  CHECK(asker.status().descriptors == before);  // the region's own descriptor is sent, however often
  while (reader.turn(writers)) continue;
  REQUIRE(reader.turn(packet));
  reader.end_of_file();
  CHECK(asker.status().descriptors <= before);
  reader.forget();
}

TEST_CASE("a request that comes instead of the rest of another is answered as itself") {
  World world;
  Client client = world.client();
  const auto region = client.create().ref(), other = client.create().ref();
  const auto first = attach_packet(region, kWrite, 30, 1), second = attach_packet(other, kWrite, 20, 2);
  REQUIRE(client.turn(first));
  CHECK(client.release(region, 1).status == Status::ok);
  REQUIRE(client.turn(first));
  while (client.turn(second)) continue;
  CHECK(elements_with<shmbw_attach_reply>(client.link().replies.back(), Status::ok) == 20);
  CHECK(client.link().replies.back().view().header.tag == 2);
  CHECK(std::ranges::count_if(world.log, [](const std::string& line) { return line.find("own bug") != line.npos; }) ==
        2);
  world.log.clear();
}

TEST_CASE("an element that was not ready when its batch was looked at is not ready, whatever comes between the turns") {
  World world(private_config());
  Client writer = world.client(), reader = world.client();
  Created ready = writer.create(), late = writer.create();
  writer.ready(ready.ref());
  REQUIRE(reader.attach_id(ready.ref()).status == Status::ok);
  std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
  wire::Writer out(buffer);
  out.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 1, 12);
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = kRead;
  for (std::size_t i = 0; i < 12; ++i) {
    wish.region = i < 10 ? ready.ref() : late.ref();
    out.element(i, wish);
  }
  const wire::Bytes packet = out.finish(0);
  REQUIRE(reader.turn(packet));
  writer.ready(late.ref());
  CHECK(!reader.turn(packet));
  const Packet& reply = reader.link().replies.back();
  CHECK(elements_with<shmbw_attach_reply>(reply, Status::ok) == 10);
  CHECK(elements_with<shmbw_attach_reply>(reply, Status::not_ready) == 2);
  CHECK(reply.fds.size() == 10);
  CHECK(reader.attach_id(late.ref()).status == Status::ok);  // asked again, it is served
}

TEST_CASE("descriptors whose close does not return count for the user that sent them, and are bounded by its share") {
  const TableOf table(4096);
  World world(with_reserve(system_config()), facts_of(1000));
  Client greedy = world.client(1000), bystander = world.client(2000);
  const std::uint32_t before = bystander.status().descriptors;
  SlowToClose slow;
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<Fd> sent;
  sent.push_back(std::move(slow.socket));
  bool more = world.books->close_elsewhere(1000, std::move(sent));
  std::uint32_t count = 1;
  while (more && count < 900) {
    sent.clear();
    sent.push_back(Fd::adopt(::fcntl(null, F_DUPFD_CLOEXEC, 0)));
    more = world.books->close_elsewhere(1000, std::move(sent));
    ++count;
  }
  ::close(null);
  CHECK(count > 300);
  CHECK(count < 360);
  CHECK(world.books->closes_too_many(1000));
  CHECK_FALSE(world.books->closes_too_many(2000));
  CHECK(bystander.status().descriptors == before + count);
  const Error refused = greedy.create().error;
  CHECK(refused.status == Status::no_descriptors);
  CHECK(refused.shortage.scope == SHMBW_SCOPE_UID);
  CHECK(create_all(bystander, 100) == 100);
  slow.peer.reset();
  while (world.books->closes_too_many(1000) || bystander.status().descriptors > before + 100) sys::rest(1'000'000);
  CHECK(greedy.create().status == Status::ok);
}

TEST_CASE("a user that is over its share for other reasons may have a few descriptors closed") {
  const TableOf table(4096);
  Config config = with_reserve(system_config());
  config.limits.uid_descriptors = 4;
  World world(config, facts_of(1000));
  Client client = world.client(1000);
  CHECK(create_all(client, 10) == 2);
  SlowToClose slow;
  std::vector<Fd> sent;
  sent.push_back(std::move(slow.socket));
  CHECK(world.books->close_elsewhere(1000, std::move(sent)));
  CHECK_FALSE(world.books->closes_too_many(1000));
  slow.peer.reset();
}

TEST_CASE("pidfds of processes that are asked how they ended leave their user and others room for sessions") {
  World world(with_reserve(system_config()), facts_of(1000));
  Client bystander = world.client(2000);
  const std::uint32_t before = bystander.status().descriptors;
  std::uint32_t kept = 0;
  while (kept < 900 && world.books->keep_pidfd(1000)) ++kept;
  CHECK(kept > 150);
  CHECK(kept < 180);
  CHECK(bystander.status().descriptors == before + kept);
  CHECK(create_all(bystander, 100) == 100);
  {
    std::vector<Client> sessions;
    for (int i = 0; i < 50; ++i) sessions.push_back(world.client(1000));
    CHECK(sessions.back().create().status == Status::ok);
  }
  for (; kept > 0; --kept) world.books->pidfd_closed(1000);
  CHECK(bystander.status().descriptors == before + 100);
  CHECK(world.books->keep_pidfd(1000));
  world.books->pidfd_closed(1000);
}
