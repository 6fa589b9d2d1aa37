// SPDX-License-Identifier: Apache-2.0
// HELLO, and what is an error reply and what drops the peer.
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::BrokerFacts;
using shmb::daemon::Config;

TEST_CASE("hello answers with the broker's facts and the kernel's uid") {
  BrokerFacts facts;
  facts.features = SHMBW_FEATURE_EXEC_SEAL;
  World world(system_config(), facts);
  Client client = world.silent(1234);
  Packet& reply = client.hello();
  auto hello = reply.fixed<shmbw_hello_reply>();
  CHECK(hello.version == SHMBW_PROTOCOL);
  CHECK(hello.mode == SHMBW_MODE_SYSTEM);
  CHECK(hello.uid == 1234);
  CHECK(hello.broker_uid == 990);
  CHECK(hello.epoch == 0xe10c);
  CHECK(hello.features == SHMBW_FEATURE_EXEC_SEAL);
  CHECK(hello.max_batch == SHMBW_MAX_BATCH);
  CHECK(hello.group == 0);  // unnamed groups are made at the first create
  CHECK(hello.session != 0);
}

TEST_CASE("a request before hello drops the peer") {
  World world;
  Client client = world.silent();
  std::vector<std::byte> buffer(1024);
  wire::Writer out(buffer);
  out.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
  client.send_only(out.finish(0));
  CHECK(client.link().replies.empty());
  CHECK(client.link().dropped == "a request before HELLO");
}

TEST_CASE("descriptors in a request drop the peer") {
  World world;
  Client client = world.client();
  std::vector<std::byte> buffer(1024);
  wire::Writer out(buffer);
  out.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
  auto view = wire::open_packet(out.finish(1), 1, wire::Direction::request);
  world.books->packet(*client.session(), *view);
  CHECK(!client.link().dropped.empty());
}

TEST_CASE("versions without overlap are answered with a sentence and the connection serves nothing else") {
  World world;
  for (auto [low, high] : {std::pair{2, 9}, std::pair{0, 0}, std::pair{3, 1}}) {
    Client client = world.silent();
    Packet& reply =
        client.hello({.version_min = static_cast<std::uint16_t>(low), .version_max = static_cast<std::uint16_t>(high)});
    CHECK(reply.status() == Status::version);
    CHECK(reply.error().sentence.find("install matching versions") != std::string::npos);
    CHECK(client.link().dropped.empty());
    CHECK(!world.books->greeted(*client.session()));
    if (high == 9) {
      shmbw_hello again{};
      again.version_min = again.version_max = 1;
      std::vector<std::byte> bytes(1024);
      wire::Writer retry(bytes);
      retry.begin(SHMBW_OP_HELLO, 2, Status::ok, again);
      client.send_only(retry.finish(0));
      CHECK(client.link().dropped.find("refused for good") != std::string::npos);
      continue;
    }
    std::vector<std::byte> buffer(1024);
    wire::Writer out(buffer);
    out.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
    client.send_only(out.finish(0));
    CHECK(!client.link().dropped.empty());
  }
}

TEST_CASE("a second hello, unknown ops, flags and a status are error replies on a connection that goes on") {
  World world;
  Client client = world.client();
  CHECK(client.hello().status() == Status::invalid);
  CHECK(client.call(999, shmbw_status{}).status() == Status::unknown_op);
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}, {}, 0x80).status() == Status::unknown_flags);
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}, "trailing").status() == Status::invalid);
  std::vector<std::byte> buffer(1024);
  wire::Writer out(buffer);
  out.begin(SHMBW_OP_STATUS, 77, Status::invalid, shmbw_status{});
  CHECK(client.exchange(out.finish(0)).status() == Status::invalid);
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}, {}, SHMBW_HEADER_NO_REPLY).status() == Status::invalid);
  CHECK(client.link().dropped.empty());
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}).status() == Status::ok);
}

TEST_CASE("a request of a newer client is too_new when its unknown tail is not zero, and served when it is") {
  World world;
  Client client = world.client();
  struct Newer {
    shmbw_ticket_create known;
    std::uint64_t more;
  };
  CHECK(client.call(SHMBW_OP_TICKET_CREATE, Newer{{}, 1}).status() == Status::too_new);
  CHECK(client.call(SHMBW_OP_TICKET_CREATE, Newer{{}, 0}).status() == Status::not_found);
}

TEST_CASE("the token of SHMBROKER_GROUP admits any uid and a wrong one is an error that can be repeated without it") {
  World world;
  Client owner = world.client(1000);
  auto made = owner.make_group({.name = "train"}).fixed<shmbw_group_create_reply>();
  Client guest = world.silent(2000);
  HelloRequest wish;
  std::memcpy(wish.group_token.data(), made.token, 16);
  wish.group_token[3] ^= 1;
  CHECK(guest.hello(wish).status() == Status::not_found);
  wish.group_token[3] ^= 1;
  CHECK(guest.hello(wish).status() == Status::ok);
  CHECK(guest.group == made.group);
  Client alone = world.silent(2000);
  wish.group_token[0] ^= 0x80;
  CHECK(alone.hello(wish).status() == Status::not_found);
  CHECK(alone.hello().status() == Status::ok);
  CHECK(alone.group == 0);
}

TEST_CASE("a forked child joins its parent's group, and an unnamed one is made for that") {
  World world;
  Client parent = world.client(1000);
  Client child = world.silent(1000);
  CHECK(child.hello({.fork_session = parent.id, .fork_secret = parent.secret}).status() == Status::ok);
  CHECK(child.group != 0);
  CHECK(parent.create().reply.group == child.group);
}

TEST_CASE("a wrong fork secret or an ended session is not_found, and hello without it is served") {
  World world;
  Client parent = world.client(1000);
  auto wrong = parent.secret;
  wrong[15] ^= 1;
  Client child = world.silent(1000);
  CHECK(child.hello({.fork_session = parent.id, .fork_secret = wrong}).status() == Status::not_found);
  CHECK(child.hello({.fork_session = 0xffff, .fork_secret = parent.secret}).status() == Status::not_found);
  CHECK(child.hello({.fork_session = child.id}).status() == Status::ok);
  Client late = world.silent(1000);
  parent.die();
  CHECK(late.hello({.fork_session = parent.id, .fork_secret = parent.secret}).status() == Status::not_found);
  CHECK(late.hello().status() == Status::ok);
}

TEST_CASE("a session over its uid's limit is refused in the answer to hello, and accepted when there is room") {
  Config config = private_config();
  config.limits.uid_sessions = 2;
  World world(config);
  Client first = world.client(1000), second = world.client(1000);
  Client third = world.silent(1000);
  REQUIRE(third.session());
  Packet& refused = third.hello();
  CHECK(refused.status() == Status::limit);
  Error error = refused.error();
  CHECK(error.shortage.slot == SHMBW_SLOT_SESSIONS);
  CHECK(error.shortage.limit == 2);
  CHECK(error.sentence.find("limits.uid.1000.sessions") != error.sentence.npos);
  CHECK(world.client(1001).id != 0);  // another uid is not concerned
  first.close();
  CHECK(third.hello().status() == Status::ok);
}

TEST_CASE("connections over the limit that only wait are bounded") {
  Config config = private_config();
  config.limits.uid_sessions = 1;
  World world(config);
  Client first = world.client(1000);
  std::vector<Client> waiting;
  std::size_t accepted = 0;
  for (int i = 0; i < 100; ++i) {
    waiting.push_back(world.silent(1000));
    accepted += waiting.back().session() != nullptr;
  }
  CHECK(accepted == 16);
  waiting.clear();  // who goes makes room for the next
  CHECK(world.silent(1000).session() != nullptr);
}

TEST_CASE("the descriptor reserve is kept for the admin socket") {
  Config config = private_config();
  config.descriptors_reserved = 64;
  BrokerFacts facts;
  facts.descriptors_limit = 100;
  std::uint32_t used = 10;
  facts.transport_descriptors = [&used] { return used; };
  World world(config, facts);
  used = 69;
  CHECK(world.silent(1000).session() == nullptr);
  used = 37;  // half of the reserve is left for saying so
  Client refused = world.silent(1000);
  CHECK(refused.hello().status() == Status::no_descriptors);
  refused.close();
  Client admin = world.admin();
  CHECK(admin.status().descriptors == 37);
  used = 10;
  CHECK(world.client(1000).id != 0);
}
