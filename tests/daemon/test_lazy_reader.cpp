// SPDX-License-Identifier: Apache-2.0
// Law 8 with a broker that has no CAP_SYS_RESOURCE, so that the kernel counts the descriptors it has in flight: lazy
// readers do not keep an honest client from being served.
#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"

using namespace harness;

namespace {

constexpr std::size_t kBatch = 100;

// Creates one region, then asks for it `kBatch` times in one packet; the answer carries as many descriptors.
bool ask_for_many(RawClient& client) {
  auto created = client.create(4096);
  if (!created.ok()) return false;
  std::vector<shmbw_attach> elements(kBatch);
  for (shmbw_attach& element : elements) {
    element.by = SHMBW_ATTACH_BY_ID;
    element.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
    element.region = created.element<shmbw_create_reply>(0).region;
  }
  std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
  shmb::wire::Writer writer(buffer);
  writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 99, kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) writer.element(i, elements[i]);
  return client.send(writer.finish(0));
}

// A process that asks over `sessions` connections and never reads an answer.
Child lazy(const std::string& socket, int sessions, const Gate& end) {
  return Child::run([&, sessions] {
    std::vector<RawClient> clients;
    for (int i = 0; i < sessions; ++i) {
      clients.push_back(RawClient::connect(socket));
      if (!clients.back().hello().ok()) return 1;
    }
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    for (RawClient& client : clients) {
      // CREATE answers with one descriptor each, and needs no answer to be read before.
      std::vector<shmbw_create> elements(kBatch);
      for (shmbw_create& element : elements) element.length = 4096;
      shmb::wire::Writer writer(buffer);
      writer.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 99, kBatch);
      for (std::size_t i = 0; i < kBatch; ++i) writer.element(i, elements[i]);
      if (!client.send(writer.finish(0))) return 2;
    }
    end.wait();
    return 0;
  });
}

bool served(RawClient& honest) {
  if (!ask_for_many(honest)) return false;
  RawPacket reply = honest.reply(99);
  return reply.kind == RawPacket::Kind::packet && reply.fds.size() == kBatch;
}

BrokerOptions with_table(const std::string& engine) {
  BrokerOptions options;
  options.engine = engine;
  options.config = "descriptors = 2000\ndescriptors_reserved = 16\nunread_timeout = \"200ms\"\n";
  return options;
}

std::uint32_t in_flight(RawClient& client) { return client.status().fixed<shmbw_status_reply>().in_flight; }

}  // namespace

TEST_CASE("a client that sends ahead of its replies is answered in full, however the two sides interleave") {
  // Each reply closes the gate and each read opens it, while the broker is at any point between the two.
  constexpr int kAhead = 8, kRequests = 20'000;
  for (const std::string& engine : engines()) {
    CAPTURE(engine);
    BrokerOptions options;
    options.engine = engine;
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    RawClient client = RawClient::connect(broker.socket());
    REQUIRE(client.hello().ok());
    int answered = 0;
    for (int sent = 0; answered < kRequests; ++answered) {
      for (; sent < kRequests && sent < answered + kAhead; ++sent)
        REQUIRE(client.ask(SHMBW_OP_STATUS, shmbw_status{}) != 0);
      if (!client.receive().ok()) break;
    }
    CHECK(answered == kRequests);
  }
}

TEST_CASE("one process with many lazy sessions uses up its own share, not the allowance of all") {
  for (const std::string& engine : engines()) {
    CAPTURE(engine);
    BrokerFixture broker(with_table(engine));
    REQUIRE_MESSAGE(broker.running(), broker.log());
    Gate end;
    Child child = lazy(broker.socket(), 15, end);
    RawClient honest = RawClient::connect(broker.socket());
    REQUIRE(honest.hello().ok());
    for (int i = 0; i < 3000 && in_flight(honest) < 1000; ++i) ::usleep(10'000);
    for (int i = 0; i < 3; ++i) CHECK(served(honest));
    CHECK(in_flight(honest) == 1000);  // of 1500: half is what one process may leave unread
    end.open();
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("over half of the allowance unread, the longest lazy session is disconnected, and others are served") {
  for (const std::string& engine : engines()) {
    CAPTURE(engine);
    BrokerFixture broker(with_table(engine));
    REQUIRE_MESSAGE(broker.running(), broker.log());
    Gate end;
    std::vector<Child> children;
    for (int i = 0; i < 11; ++i) children.push_back(lazy(broker.socket(), 1, end));
    RawClient honest = RawClient::connect(broker.socket());
    REQUIRE(honest.hello().ok());
    for (int i = 0; i < 3000 && broker.log().find("it does not read its replies") == std::string::npos; ++i)
      ::usleep(10'000);
    CHECK(broker.log().find("it does not read its replies") != std::string::npos);
    CHECK(served(honest));
    CHECK(in_flight(honest) == 1100);  // the kernel still counts them, so the broker does
    CHECK(honest.status().fixed<shmbw_status_reply>().regions >= 1100);  // and their leases stay
    end.open();
    for (Child& each : children) CHECK(each.wait() == 0);
  }
}
