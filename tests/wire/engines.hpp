// SPDX-License-Identifier: Apache-2.0
// The same body against a broker of each engine, each with a fixture of its own.
#pragma once

#include <doctest/doctest.h>

#include <utility>

#include "tests/wire/support.hpp"

namespace wire_test {

template <class Body>
void on_each_engine(BrokerOptions options, Body&& body) {
  for (const std::string& engine : harness::engines()) {
    INFO("engine: ", engine);
    options.engine = engine;
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    body(broker);
  }
}

inline RawClient greeted(const std::string& path) {
  RawClient client = RawClient::connect(path);
  RawPacket hello = client.hello();
  REQUIRE_MESSAGE(hello.ok(), hello.sentence());
  return client;
}
inline RawClient greeted(const BrokerFixture& broker) { return greeted(broker.socket()); }

inline bool hung_up(RawClient& client) {
  RawPacket packet = client.receive(30'000);
  return packet.kind == RawPacket::Kind::end_of_file || packet.kind == RawPacket::Kind::failed;
}

// The one element of a batch, its outcome checked: of a success the reply's element.
template <class Reply, class Element>
Reply ok_element(RawClient& client, std::uint16_t op, const Element& element, std::string_view texts = {},
                 std::vector<shmb::Fd>* fds = nullptr) {
  RawPacket reply = client.call_batch(op, one(element), texts);
  REQUIRE_MESSAGE(reply.ok(), reply.sentence());
  REQUIRE_MESSAGE(reply.element<shmbw_outcome>(0).status == 0, error_of_element(reply).sentence);
  if (fds) *fds = std::move(reply.fds);
  return reply.element<Reply>(0);
}

inline shmbw_create_reply create_region(RawClient& client, const shmbw_create& wish, std::string_view name = {}) {
  shmbw_create create = wish;
  create.name_len = static_cast<std::uint16_t>(name.size());
  return ok_element<shmbw_create_reply>(client, SHMBW_OP_CREATE, create, name);
}
inline shmbw_create_reply create_region(RawClient& client, std::uint64_t length, std::string_view name = {}) {
  shmbw_create create{};
  create.length = length;
  return create_region(client, create, name);
}

}  // namespace wire_test
