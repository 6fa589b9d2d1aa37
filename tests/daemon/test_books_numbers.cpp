// SPDX-License-Identifier: Apache-2.0
// Numbers of packets, with the feature RESUME: no packet is served twice or out of its order, whatever a client sends.
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;

namespace {

constexpr std::uint64_t kLarge = std::uint64_t{1} << 62;

BrokerFacts resumable() {
  BrokerFacts facts;
  facts.resumable = true;
  return facts;
}

// A session whose HELLO has number 1, and packets with numbers that the test chooses.
struct Numbered {
  World world{system_config(), resumable()};
  Client client = world.silent();

  Numbered() { REQUIRE(client.hello({.features = SHMBW_FEATURE_RESUME}).status() == Status::ok); }

  // How many answers came.
  std::size_t send(std::uint64_t number, std::uint16_t op = SHMBW_OP_STATUS, std::uint16_t flags = 0) {
    const std::size_t before = client.link().replies.size();
    wire::Writer out(request_room());
    out.begin(op, number, Status::ok, shmbw_status{}, flags);
    client.send_only(out.finish(0));
    return client.link().replies.size() - before;
  }
  std::size_t create(std::uint64_t number) {
    const std::size_t before = client.link().replies.size();
    wire::Writer out(request_room());
    out.begin_batch<shmbw_create>(SHMBW_OP_CREATE, number, 1);
    out.element(0, shmbw_create{.length = 4096});
    client.send_only(out.finish(0));
    return client.link().replies.size() - before;
  }
  void release(std::uint64_t number, shmbw_region_ref region) {
    wire::Writer out(request_room());
    out.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, number, 1, SHMBW_HEADER_NO_REPLY);
    out.element(0, shmbw_release{region, 1, 0});
    client.send_only(out.finish(0));
  }
  Status last_status() { return client.link().replies.back().status(); }
};

}  // namespace

TEST_CASE("only the packet after the last one is served; others change nothing, and but for the last get no answer") {
  Numbered numbered;
  for (std::uint64_t next = 2; next < 6; ++next) {
    for (const std::uint64_t wrong :
         {std::uint64_t{0}, next - 2, next + 1, next + 2, kLarge, UINT64_MAX - 1, UINT64_MAX}) {
      CAPTURE(wrong);
      CHECK(numbered.create(wrong) == 0);
    }
    for (int times = 0; times < 2; ++times) CHECK(numbered.create(next) == 1);
    CHECK(numbered.client.link().dropped.empty());
  }
  CHECK(numbered.send(6) == 1);
  CHECK(numbered.client.link().replies.back().fixed<shmbw_status_reply>().regions == 4);
}

TEST_CASE("one-way messages count, and are not served twice") {
  Numbered numbered;
  REQUIRE(numbered.create(2) == 1);
  auto batch = wire::BatchView::open(numbered.client.link().replies.back().view());
  REQUIRE(batch);
  const shmbw_region_ref region = batch->element<shmbw_create_reply>(0)->region;
  const auto regions = [&](std::uint64_t number) {
    REQUIRE(numbered.send(number) == 1);
    return numbered.client.link().replies.back().fixed<shmbw_status_reply>().regions;
  };
  numbered.release(4, region);  // too early
  CHECK(regions(3) == 1);
  numbered.release(4, region);
  numbered.release(4, region);
  CHECK(regions(5) == 0);
}

TEST_CASE("refused requests count as well") {
  Numbered numbered;
  CHECK(numbered.send(2, 999) == 1);
  CHECK(numbered.last_status() == Status::unknown_op);
  CHECK(numbered.send(2, 999) == 1);  // its answer comes again
  CHECK(numbered.last_status() == Status::unknown_op);
  CHECK(numbered.send(3, SHMBW_OP_STATUS, 1 << 9) == 1);
  CHECK(numbered.last_status() == Status::unknown_flags);
  CHECK(numbered.send(4, SHMBW_OP_STATUS, SHMBW_HEADER_NO_REPLY) == 1);
  CHECK(numbered.last_status() == Status::invalid);
  CHECK(numbered.send(5, SHMBW_OP_STATUS, SHMBW_HEADER_RESUMED) == 1);
  CHECK(numbered.last_status() == Status::ok);
}

TEST_CASE("the number of HELLO is where a session begins to count; one that cannot be is refused") {
  for (const std::uint64_t number : {std::uint64_t{0}, kLarge + 1, UINT64_MAX}) {
    CAPTURE(number);
    World world(system_config(), resumable());
    Client client = world.silent();
    const auto hello = [&](std::uint64_t tag) {
      shmbw_hello wish{};
      wish.version_min = wish.version_max = SHMBW_PROTOCOL;
      wish.features = SHMBW_FEATURE_RESUME;
      wire::Writer out(request_room());
      out.begin(SHMBW_OP_HELLO, tag, Status::ok, wish);
      client.send_only(out.finish(0));
      return client.link().replies.back().status();
    };
    CHECK(hello(number) == Status::invalid);
    CHECK(hello(7) == Status::ok);
    CHECK((client.link().replies.back().fixed<shmbw_hello_reply>().features & SHMBW_FEATURE_RESUME) != 0);
    wire::Writer out(request_room());
    out.begin(SHMBW_OP_STATUS, 8, Status::ok, shmbw_status{});
    client.send_only(out.finish(0));
    CHECK(client.link().replies.back().view().header.tag == 8);
  }
}

TEST_CASE("a session that has not asked for numbers may choose its tags, and the flag has no effect") {
  World world;
  Client client = world.client();
  for (const std::uint64_t tag : {5, 5, 0, 3}) {
    const std::size_t before = client.link().replies.size();
    wire::Writer out(request_room());
    out.begin(SHMBW_OP_STATUS, tag, Status::ok, shmbw_status{});
    client.send_only(out.finish(0));
    REQUIRE(client.link().replies.size() == before + 1);
    CHECK(client.link().replies.back().status() == Status::ok);
  }
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}, {}, SHMBW_HEADER_RESUMED).status() == Status::ok);
}

TEST_CASE("a broker that no other can follow does not grant the feature, and asks for no numbers") {
  World world;
  Client client = world.silent();
  Packet& reply = client.hello({.features = SHMBW_FEATURE_RESUME});
  CHECK((reply.fixed<shmbw_hello_reply>().features & SHMBW_FEATURE_RESUME) == 0);
  for (const std::uint64_t tag : {7, 7, 0}) {
    const std::size_t before = client.link().replies.size();
    wire::Writer out(request_room());
    out.begin(SHMBW_OP_STATUS, tag, Status::ok, shmbw_status{});
    client.send_only(out.finish(0));
    CHECK(client.link().replies.size() == before + 1);
  }
}

TEST_CASE("a batch that is served in parts has one number, and counts when it is done") {
  Numbered numbered;
  const std::vector<shmbw_create> many(100, shmbw_create{.length = 4096});
  std::vector<std::byte> room(65'536);
  wire::Writer out(room);
  out.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 2, many.size());
  for (std::size_t i = 0; i < many.size(); ++i) out.element(i, many[i]);
  const wire::Bytes packet = out.finish(0);
  while (numbered.client.turn(packet)) {
  }
  CHECK(numbered.client.link().replies.size() == 2);
  numbered.client.turn(packet);
  CHECK(numbered.client.link().replies.size() == 3);
  CHECK(numbered.client.link().replies[2].bytes == numbered.client.link().replies[1].bytes);
  CHECK(numbered.send(3) == 1);
  CHECK(numbered.client.link().replies.back().fixed<shmbw_status_reply>().regions == 100);
}

TEST_CASE("a held request whose client is gone counts as served, so the one-way messages behind it are served") {
  Numbered numbered;
  World& world = numbered.world;
  Client& client = numbered.client;
  const Created published = client.create(), released = client.create();
  client.ready(published.ref());
  wire::Writer out(request_room());
  out.begin(SHMBW_OP_PUBLISH, 5, Status::ok, shmbw_publish{published.ref()});
  const wire::Bytes packet = out.finish(0);
  const std::vector<std::byte> publish(packet.begin(), packet.end());
  client.send_only(publish);
  REQUIRE(client.link().held);
  client.link().held = false;
  client.link().again = [] { FAIL("it was given up"); };
  world.books->given_up(*client.session(), *wire::open_packet(publish, 0, wire::Direction::request));
  CHECK(world.status().regions == 2);
  numbered.release(6, released.ref());
  world.wait_for_closes();
  CHECK(world.status().regions == 1);
  auto sealed = sys::poll_readable(world.books->wake_fd(), kMinute);
  REQUIRE(sealed);
  world.books->woken();
}
