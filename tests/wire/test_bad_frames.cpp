// SPDX-License-Identifier: Apache-2.0
// Packets that are not as PROTOCOL.md says, each by name: which of them cost the connection, which get a reason, and
// that a session goes on after a reason.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>

#include "base/sys_process.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

constexpr std::uint64_t kTag = 77;

void check_dropped(const BrokerFixture& broker, bool greet, const char* what, const Packet& packet) {
  INFO(what);
  RawClient client = greet ? greeted(broker) : RawClient::connect(broker.socket());
  REQUIRE(client.connected());
  (void)client.send(packet);
  CHECK(hung_up(client));
}

RawPacket answer_to(RawClient& client, const Packet& packet) {
  REQUIRE(client.send(packet));
  RawPacket reply = client.receive(30'000);
  REQUIRE(reply.kind == RawPacket::Kind::packet);
  CHECK(wrong_with(reply, packet) == "");
  return reply;
}

void check_refused(RawClient& client, const Packet& packet, shmb::Status status, const char* word) {
  RawPacket reply = answer_to(client, packet);
  CHECK(static_cast<shmb::Status>(reply.status()) == status);
  CHECK(wrong_with_sentence(error_of(reply)) == "");
  CHECK_MESSAGE(reply.sentence().find(word) != std::string::npos, reply.sentence());
  CHECK(client.status().ok());
}

Packet status_packet(std::uint16_t op = SHMBW_OP_STATUS, std::uint16_t flags = 0) {
  return plain(op, kTag, shmbw_status{}, {}, flags);
}

Packet with(Packet packet, auto&& change) {
  shmbw_header header = header_of(packet);
  change(header);
  set_header(packet, header);
  return packet;
}

}  // namespace

TEST_CASE("a peer that begins with anything but HELLO is dropped") {
  on_each_engine({}, [](BrokerFixture& broker) {
    for (std::uint16_t op : {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 0x100, 0x3fff})
      check_dropped(broker, false, ("op " + std::to_string(op)).c_str(), status_packet(op));
    RawClient late = RawClient::connect(broker.socket());
    CHECK(late.hello().ok());
  });
}

TEST_CASE("a packet whose frame is broken drops its sender, greeted or not") {
  on_each_engine({}, [](BrokerFixture& broker) {
    for (bool greet : {false, true}) {
      CAPTURE(greet);
      Packet good = greet ? status_packet() : plain(SHMBW_OP_HELLO, kTag, RawClient::greeting());
      check_dropped(broker, greet, "empty", {});
      check_dropped(broker, greet, "one byte", Packet(1));
      check_dropped(broker, greet, "half a header", Packet(good.begin(), good.begin() + 12));
      check_dropped(broker, greet, "truncated", Packet(good.begin(), good.end() - 1));
      Packet longer = good;
      longer.resize(longer.size() + 1);
      check_dropped(broker, greet, "a byte too many", longer);
      check_dropped(broker, greet, "size 0", with(good, [](auto& header) { header.size = 0; }));
      check_dropped(broker, greet, "size 2^32 - 1", with(good, [](auto& header) { header.size = 0xffff'ffff; }));
      check_dropped(broker, greet, "fixed beyond the end", with(good, [](auto& header) { ++header.fixed; }));
      check_dropped(broker, greet, "fixed 65535", with(good, [](auto& header) { header.fixed = 0xffff; }));
      check_dropped(broker, greet, "a reply", with(good, [](auto& header) { header.op |= SHMBW_REPLY; }));
      check_dropped(broker, greet, "an event", with(good, [](auto& header) { header.op |= SHMBW_EVENT; }));
      check_dropped(broker, greet, "reply and event", with(good, [](auto& header) { header.op |= 0xc000; }));
      for (std::uint16_t n_fds : {1, 2, 253, 254, 0x7fff, 0xffff})
        check_dropped(broker, greet, "descriptors that did not come",
                      with(good, [=](auto& header) { header.n_fds = n_fds; }));
      for (std::size_t size : {std::size_t{65537}, std::size_t{65560}, std::size_t{131072}}) {
        Packet huge = with(good, [=](auto& header) { header.size = static_cast<std::uint32_t>(size); });
        huge.resize(size);
        check_dropped(broker, greet, "longer than any message", huge);
      }
    }
    CHECK(greeted(broker).status().ok());
  });
}

TEST_CASE("an unknown request, flag or status gets a reason and the session goes on") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    for (std::uint16_t op : {0, 39, 62, 63, 255, 256, 0x1fff, 0x3fff})
      check_refused(client, status_packet(op), shmb::Status::unknown_op, std::to_string(op).c_str());
    for (std::uint16_t flag = SHMBW_HEADER_KNOWN + 1; flag != 0; flag = static_cast<std::uint16_t>(flag << 1))
      check_refused(client, status_packet(SHMBW_OP_STATUS, flag), shmb::Status::unknown_flags, "flag");
    check_refused(client, status_packet(SHMBW_OP_STATUS, SHMBW_HEADER_NO_REPLY), shmb::Status::invalid, "no_reply");
    for (std::int32_t status : {1, 26, 27, -1, INT32_MIN, INT32_MAX})
      check_refused(client, with(status_packet(), [=](auto& header) { header.status = status; }), shmb::Status::invalid,
                    "status");
    for (std::uint16_t flag : {SHMBW_HEADER_CRITICAL, SHMBW_HEADER_RESUMED})
      CHECK(answer_to(client, status_packet(SHMBW_OP_STATUS, flag)).ok());
    CHECK(answer_to(client, with(status_packet(), [](auto& header) { header.tag = UINT64_MAX; })).ok());
    CHECK(answer_to(client, with(status_packet(), [](auto& header) { header.tag = 0; })).ok());
  });
}

TEST_CASE("a struct of another age is read by the rules of growth") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    Packet shorter = with(Packet(24), [](auto& header) { header = {24, SHMBW_OP_STATUS, 0, kTag, 0, 0, 0}; });
    CHECK(answer_to(client, shorter).ok());
    struct Longer {
      shmbw_list known;
      std::uint64_t future;
    };
    Longer longer{};
    longer.known.table = SHMBW_TABLE_REGIONS;
    CHECK(answer_to(client, plain(SHMBW_OP_LIST, kTag, longer)).ok());
    longer.future = 1;
    check_refused(client, plain(SHMBW_OP_LIST, kTag, longer), shmb::Status::too_new, "fields");
    shmbw_group_leave leave{};
    Packet text_too_many = plain(SHMBW_OP_GROUP_LEAVE, kTag, leave, "x");
    check_refused(client, text_too_many, shmb::Status::invalid, "sizes");
    // HELLO in its first, smallest form.
    RawClient old = RawClient::connect(broker.socket());
    const std::uint16_t versions[2] = {1, 1};
    CHECK(answer_to(old, plain(SHMBW_OP_HELLO, kTag, versions)).ok());
    CHECK(old.status().ok());
  });
}

TEST_CASE("a batch whose counts and sizes do not add up is refused whole and nothing of it is done") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    shmbw_create wish{};
    wish.length = 4096;
    auto refused = [&](const char* what, std::uint16_t count, std::uint16_t element_size, std::size_t elements,
                       std::string_view texts, std::uint16_t name_len) {
      INFO(what);
      shmbw_create element = wish;
      element.name_len = name_len;
      std::vector<shmbw_create> all(elements, element);
      std::string rest(reinterpret_cast<const char*>(all.data()), all.size() * sizeof wish);
      rest += texts;
      Packet packet = plain(SHMBW_OP_CREATE, kTag, shmbw_batch{count, element_size, 0}, rest);
      check_refused(client, packet, shmb::Status::invalid, "sizes");
    };
    constexpr std::uint16_t size = sizeof wish;
    refused("no element", 0, size, 1, "", 0);
    refused("an element size of 0", 1, 0, 1, "", 0);
    refused("fewer elements than said", 2, size, 1, "", 0);
    refused("more elements than said", 1, size, 2, "", 0);
    refused("more than a batch holds", 254, size, 254, "", 0);
    refused("65535 elements", 0xffff, 1, 4, "", 0);
    refused("65535 bytes per element", 1, 0xffff, 4, "", 0);
    refused("a text that is not there", 1, size, 1, "", 5);
    refused("a text that is cut", 2, size, 2, "abcde", 5);
    refused("a text that nobody owns", 1, size, 1, "abc", 0);
    refused("a text of 65535 bytes", 1, size, 1, "abc", 0xffff);
    Packet reserved = plain(SHMBW_OP_CREATE, kTag, shmbw_batch{1, size, 1}, std::string(size, '\0'));
    check_refused(client, reserved, shmb::Status::too_new, "fields");
    CHECK(books_of(broker).regions == 0);
  });
}

TEST_CASE("a replayed message is a second request, and a second HELLO changes nothing") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = RawClient::connect(broker.socket());
    Packet hello = plain(SHMBW_OP_HELLO, kTag, RawClient::greeting());
    auto first = answer_to(client, hello).fixed<shmbw_hello_reply>();
    check_refused(client, hello, shmb::Status::invalid, "HELLO");
    CHECK(answer_to(client, status_packet()).fixed<shmbw_status_reply>().sessions == 1);

    shmbw_create create{};
    create.length = 4096;
    Packet make = batch(SHMBW_OP_CREATE, kTag, std::vector{create});
    auto one_region = answer_to(client, make).element<shmbw_create_reply>(0);
    auto two_region = answer_to(client, make).element<shmbw_create_reply>(0);
    CHECK(one_region.outcome.status == 0);
    CHECK(two_region.outcome.status == 0);
    CHECK(one_region.region.id != two_region.region.id);

    Packet release = batch(SHMBW_OP_RELEASE, kTag, std::vector{shmbw_release{two_region.region, 0, 0}});
    CHECK(answer_to(client, release).element<shmbw_outcome>(0).status == 0);
    CHECK(answer_to(client, release).element<shmbw_outcome>(0).status == SHMB_E_NOT_FOUND);

    Packet draw = plain(SHMBW_OP_TICKET_CREATE, kTag,
                        shmbw_ticket_create{one_region.region, SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE, 1, 0});
    auto drawn = answer_to(client, draw).fixed<shmbw_ticket_create_reply>();
    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_TICKET;
    attach.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
    std::memcpy(attach.ticket, drawn.ticket, sizeof attach.ticket);
    Packet use = batch(SHMBW_OP_ATTACH, kTag, std::vector{attach});
    CHECK(answer_to(client, use).element<shmbw_outcome>(0).status == 0);
    CHECK(answer_to(client, use).element<shmbw_outcome>(0).status == SHMB_E_NOT_FOUND);

    shmbw_group_create group{};
    group.name_len = 3;
    Packet make_group = plain(SHMBW_OP_GROUP_CREATE, kTag, group, "abc");
    CHECK(answer_to(client, make_group).ok());
    CHECK(answer_to(client, make_group).status() == SHMB_E_EXISTS);
    // The same session still, in the same group.
    shmbw_hello follow = RawClient::greeting();
    follow.fork_session = first.session;
    std::memcpy(follow.fork_secret, first.fork_secret, sizeof follow.fork_secret);
    RawClient second = RawClient::connect(broker.socket());
    auto greeted_second = second.call(SHMBW_OP_HELLO, follow).fixed<shmbw_hello_reply>();
    CHECK(greeted_second.group == one_region.group);
  });
}

TEST_CASE("a client of another protocol version gets both versions and is then dropped") {
  on_each_engine({}, [](BrokerFixture& broker) {
    for (auto [least, most] : {std::pair{2, 9}, {0, 0}, {5, 2}, {65535, 65535}, {2, 0}}) {
      CAPTURE(least);
      CAPTURE(most);
      RawClient client = RawClient::connect(broker.socket());
      shmbw_hello hello = RawClient::greeting();
      hello.version_min = static_cast<std::uint16_t>(least);
      hello.version_max = static_cast<std::uint16_t>(most);
      RawPacket reply = client.call(SHMBW_OP_HELLO, hello);
      CHECK(reply.status() == SHMB_E_VERSION);
      for (const std::string& word :
           {std::to_string(least), std::to_string(most), std::to_string(SHMBW_PROTOCOL), std::string("install")})
        CHECK_MESSAGE(reply.sentence().find(word) != std::string::npos, reply.sentence());
      (void)client.send(status_packet());
      CHECK(hung_up(client));
    }
    for (auto [least, most] : {std::pair{0, 65535}, {1, 1}, {1, 7}, {0, 1}}) {
      RawClient client = RawClient::connect(broker.socket());
      shmbw_hello hello = RawClient::greeting();
      hello.version_min = static_cast<std::uint16_t>(least);
      hello.version_max = static_cast<std::uint16_t>(most);
      RawPacket reply = client.call(SHMBW_OP_HELLO, hello);
      CHECK(reply.ok());
      CHECK(reply.fixed<shmbw_hello_reply>().version == SHMBW_PROTOCOL);
    }
  });
}

TEST_CASE("a HELLO that is refused for what it carries may be said again") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = RawClient::connect(broker.socket());
    shmbw_hello hello = RawClient::greeting();
    hello.fork_session = 4711;
    RawPacket reply = client.call(SHMBW_OP_HELLO, hello);
    CHECK(reply.status() == SHMB_E_NOT_FOUND);
    CHECK(wrong_with_sentence(error_of(reply)) == "");
    hello.fork_session = 0;
    hello.group_token[3] = 9;
    reply = client.call(SHMBW_OP_HELLO, hello);
    CHECK(reply.status() == SHMB_E_NOT_FOUND);
    CHECK_MESSAGE(reply.sentence().find("SHMBROKER_GROUP") != std::string::npos, reply.sentence());
    CHECK(client.hello().ok());
    CHECK(client.status().ok());
  });
}

TEST_CASE("clients that connect and say nothing are dropped after the time for HELLO, and no others") {
  on_each_engine({}, [](BrokerFixture& broker) {
    std::vector<RawClient> silent;
    for (int i = 0; i < 8; ++i) silent.push_back(RawClient::connect(broker.socket()));
    RawClient talking = greeted(broker);
    for (RawClient& client : silent) CHECK(hung_up(client));
    CHECK(talking.status().ok());
    CHECK(books_of(broker).sessions == 1);
  });
}

TEST_CASE("a flood of silent connections costs the silent only") {
  BrokerOptions options;
  options.config = "descriptors = 256\nhello_timeout = \"1h\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    REQUIRE(bystander.goes_on());
    std::vector<RawClient> flood;
    for (int i = 0; i < 300; ++i) flood.push_back(RawClient::connect(broker.socket()));
    CHECK(bystander.goes_on());
    RawClient another = greeted(broker);
    CHECK(another.status().ok());
    // The oldest of the silent have had to go, without the time-out.
    CHECK(hung_up(flood.front()));
    CHECK(broker.descriptors() < 128);
    flood.clear();
    CHECK(bystander.goes_on());
    CHECK(bystander.wrong() == "");
  });
}

namespace {

struct Passed {
  const char* name;
  shmb::Fd fd;
};

std::vector<Passed> kinds_of_descriptors() {
  std::vector<Passed> kinds;
  auto add = [&](const char* name, int fd) {
    REQUIRE_MESSAGE(fd >= 0, name);
    kinds.push_back({name, shmb::Fd::adopt(fd)});
  };
  add("memfd", ::memfd_create("wire", MFD_CLOEXEC));
  add("/dev/null", ::open("/dev/null", O_RDWR | O_CLOEXEC));
  add("directory", ::open("/", O_RDONLY | O_CLOEXEC));
  add("O_PATH", ::open("/", O_PATH | O_CLOEXEC));
  auto event = shmb::sys::event_fd();
  auto epoll = shmb::sys::epoll();
  auto pair = shmb::sys::seqpacket_pair();
  REQUIRE((event && epoll && pair));
  kinds.push_back({"eventfd", std::move(*event)});
  kinds.push_back({"epoll", std::move(*epoll)});
  kinds.push_back({"socket", std::move((*pair)[0])});
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  add("pipe, reading", ends[0]);
  add("pipe, writing", ends[1]);
  return kinds;
}

// The kernel may refuse to carry them at all (6.16); otherwise the broker drops who sent them. It keeps none.
void check_not_taken(BrokerFixture& broker, bool greet, int fd, std::size_t count, std::size_t n_fds) {
  CAPTURE(greet);
  CAPTURE(count);
  CAPTURE(n_fds);
  RawClient client = greet ? greeted(broker) : RawClient::connect(broker.socket());
  Packet packet = greet ? status_packet() : plain(SHMBW_OP_HELLO, kTag, RawClient::greeting());
  packet = with(packet, [&](auto& header) { header.n_fds = static_cast<std::uint16_t>(n_fds); });
  std::vector<int> fds(count, fd < 0 ? client.fd() : fd);
  auto sent = shmb::sys::send(client.fd(), packet, {}, fds, true);
  if (sent) {
    CHECK(hung_up(client));
  } else {
    CHECK(sent.error().value == EPERM);
    CHECK((greet ? client.status().ok() : client.hello().ok()));
  }
}

}  // namespace

TEST_CASE("descriptors that no request asked for are not taken, whatever their kind and number") {
  for (const char* kernel : {"", "5.15"}) {
    for (const std::string& engine : harness::engines()) {
      BrokerOptions options;
      options.engine = engine;
      options.kernel = kernel;
      if (*kernel != '\0' && engine == "io_uring") options.kernel = "6.1";
      INFO(harness::name_of(options));
      BrokerFixture broker(options);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      const std::size_t before = descriptors_at_rest(broker);
      std::vector<Passed> kinds = kinds_of_descriptors();
      for (const Passed& passed : kinds) {
        INFO(passed.name);
        check_not_taken(broker, true, passed.fd.get(), 1, 1);
        check_not_taken(broker, false, passed.fd.get(), 1, 1);
        check_not_taken(broker, true, passed.fd.get(), 1, 0);
        check_not_taken(broker, true, passed.fd.get(), 2, 1);
        check_not_taken(broker, true, passed.fd.get(), 253, 253);
      }
      for (std::size_t count : {1, 2, 253}) check_not_taken(broker, true, -1, count, count);
      for (std::size_t count = 1; count <= 253; count += thorough() ? 1 : 17)
        check_not_taken(broker, count % 2 == 0, kinds[count % kinds.size()].fd.get(), count, count);
      CHECK(settled(broker, {.answered = true}, before) == "");
    }
  }
}

}  // namespace wire_test
