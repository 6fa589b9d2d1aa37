// SPDX-License-Identifier: Apache-2.0
// The common part of the wire tests: packets made by hand, the form of any reply, the broker's books as numbers, and
// the rule for a broken frame. That rule is written again from PROTOCOL.md, not taken from the codec under test.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/until.hpp"

namespace wire_test {

inline constexpr std::uint32_t kRead = SHMBW_RIGHT_MAP_READ, kWrite = SHMBW_RIGHT_MAP_WRITE, kRights = kRead | kWrite;

using Packet = std::vector<std::byte>;
using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::RawClient;
using harness::RawPacket;
using support::eventually;
using support::on_each_engine;

// The program's argument --all: every value and every length instead of the subset that CI has time for.
bool thorough();

void append(Packet& packet, const void* data, std::size_t size);

template <class T>
Packet plain(std::uint16_t op, std::uint64_t tag, const T& fixed, std::string_view texts = {},
             std::uint16_t flags = 0) {
  shmbw_header header{};
  header.size = static_cast<std::uint32_t>(sizeof header + sizeof fixed + texts.size());
  header.op = op;
  header.flags = flags;
  header.tag = tag;
  header.fixed = sizeof fixed;
  Packet packet;
  append(packet, &header, sizeof header);
  append(packet, &fixed, sizeof fixed);
  append(packet, texts.data(), texts.size());
  return packet;
}

template <class T>
Packet batch(std::uint16_t op, std::uint64_t tag, const std::vector<T>& elements, std::string_view texts = {},
             std::uint16_t flags = 0) {
  shmbw_batch front{static_cast<std::uint16_t>(elements.size()), sizeof(T), 0};
  std::string rest(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
  return plain(op, tag, front, rest.append(texts), flags);
}

shmbw_header header_of(std::span<const std::byte> packet);
void set_header(Packet& packet, const shmbw_header& header);  // as much of it as the packet has room for

// Whether a request that brings so many descriptors has to cost its sender the connection; everything else must get an
// answer.
bool breaks_the_frame(std::span<const std::byte> packet, bool greeted, std::size_t brought = 0);
// Whether the broker may keep silent about it (READY, LANE_FINISHED, and those that take no_reply).
bool may_be_silent(std::span<const std::byte> packet);

// "" or what is wrong with a reply to this request: frame, tag, status, sentence, descriptors.
std::string wrong_with(const RawPacket& reply, std::span<const std::byte> request);

// The error of a reply that is one, or of one element of a batch reply.
shmb::Error error_of(const RawPacket& reply);
shmb::Error error_of_element(const RawPacket& reply, std::size_t index = 0);
// "" or what the sentence lacks: a person must learn what is wrong, and for a limit also of whom, how full and how to
// go on; the numbers must stand beside it.
std::string wrong_with_sentence(const shmb::Error& error);

struct Books {
  std::uint64_t regions = 0, bytes = 0, leases = 0, tickets = 0, watches = 0, groups = 0, sessions = 0;
  bool answered = false;
  friend bool operator==(const Books&, const Books&) = default;
  std::string text() const;
};
// Over the admin socket; the asking session is not counted.
Books books_of(const BrokerFixture& broker);
// The broker's open descriptors once the last connection has been closed on its side too.
std::size_t descriptors_at_rest(const BrokerFixture& broker);
// Waits until books and descriptors are as they were: "" or the difference.
std::string settled(const BrokerFixture& broker, const Books& books, std::size_t descriptors,
                    int milliseconds = 20'000);
// Ends all kept or forgotten groups of this uid but one, as their owner may.
void end_groups(const BrokerFixture& broker, std::uint64_t except = 0);

template <class T>
std::span<const T> one(const T& value) {
  return {&value, 1};
}

// The whole of a table, page by page; `visit(record, texts)` for each. False: a reply was wrong.
template <class Record, class Visit>
bool list_all(RawClient& client, std::uint32_t table, Visit&& visit) {
  shmbw_list wish{};
  wish.table = table;
  do {
    RawPacket page = client.call(SHMBW_OP_LIST, wish);
    if (!page.ok()) return false;
    auto front = page.fixed<shmbw_list_reply>();
    std::string_view rest = page.rest();
    shmb::wire::RecordReader records(shmb::wire::Bytes(reinterpret_cast<const std::byte*>(rest.data()), rest.size()),
                                     front.element_size);
    for (std::size_t i = 0; i < front.count; ++i) {
      auto record = records.next<Record>();
      if (!record) return false;
      if constexpr (requires { record->group_len; })
        if (!records.text(record->group_len)) return false;
      if constexpr (requires { record->name_len; })
        if (!records.text(record->name_len)) return false;
      if constexpr (requires { record->address_len; })
        if (!records.text(record->address_len)) return false;
      if constexpr (requires { record->error_len; })
        if (!records.text(record->error_len)) return false;
      if constexpr (requires { record->library_len; })
        if (!records.text(record->library_len)) return false;
      visit(*record);
    }
    if (!records.done()) return false;
    wish.cursor = front.next;
  } while (wish.cursor != 0);
  return true;
}

// In a case: the reply that must come.
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
