// SPDX-License-Identifier: Apache-2.0
// The frame of a packet, batches, the writer: nothing is read beyond what arrived, nothing written beyond the buffer,
// and no count wraps.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "proto/codec.hpp"
#include "tests/proto/any_message.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;
using namespace shmb::wire::test;

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  auto* first = reinterpret_cast<const std::byte*>(&value);
  return {first, first + sizeof value};
}

// A copy that ends where the data ends: the address sanitizer sees a read one byte beyond it.
struct Exact {
  explicit Exact(Bytes from) : size(from.size()), data(std::make_unique<std::byte[]>(size)) {
    if (size != 0) std::memcpy(data.get(), from.data(), size);
  }
  operator Bytes() const { return {data.get(), size}; }
  std::size_t size;
  std::unique_ptr<std::byte[]> data;
};

std::vector<std::byte> packet_of(std::uint32_t size, std::uint16_t fixed, std::uint16_t n_fds, std::size_t length,
                                 std::uint16_t op = SHMBW_OP_STATUS) {
  shmbw_header header{};
  header.size = size;
  header.op = op;
  header.fixed = fixed;
  header.n_fds = n_fds;
  auto packet = bytes_of(header);
  packet.resize(length);
  return packet;
}

std::vector<std::byte> batch_packet(std::uint16_t count, std::uint16_t element_size, std::size_t rest) {
  auto packet = packet_of(static_cast<std::uint32_t>(32 + rest), 8, 0, 24, SHMBW_OP_RELEASE);
  auto head = bytes_of(shmbw_batch{count, element_size, 0});
  packet.insert(packet.end(), head.begin(), head.end());
  packet.resize(32 + rest);
  return packet;
}

std::expected<BatchView, Status> open_batch(std::uint16_t count, std::uint16_t element_size, std::size_t rest) {
  static std::vector<std::byte> packet;  // outlives the view that is given back
  packet = batch_packet(count, element_size, rest);
  auto view = open_packet(packet, 0, Direction::request);
  REQUIRE(view);
  return BatchView::open(*view);
}

TEST_CASE("a packet opens only when its size field is the number of bytes that came, at every length") {
  for (std::uint32_t said = 0; said <= 64; ++said) {
    for (std::size_t came = 0; came <= 64; ++came) {
      Exact packet(packet_of(said, 0, 0, std::max<std::size_t>(came, 24)));
      auto view = open_packet(Bytes(packet).first(came), 0, Direction::request);
      CAPTURE(said);
      CAPTURE(came);
      CHECK(view.has_value() == (came >= 24 && said == came));
      if (came == 0) CHECK(failed(view, Malformed::empty));
      if (came > 0 && came < 24) CHECK(failed(view, Malformed::short_header));
      if (came >= 24 && said != came) CHECK(failed(view, Malformed::size));
      if (view) CHECK(view->fixed.size() + view->rest.size() == came - 24);
    }
  }
}

TEST_CASE("the fixed part may fill the packet but not leave it, at every length") {
  for (std::uint16_t fixed = 0; fixed <= 64; ++fixed) {
    Exact packet(packet_of(56, fixed, 0, 56));
    auto view = open_packet(packet, 0, Direction::request);
    CHECK(view.has_value() == (fixed <= 32));
    if (view) {
      CHECK(view->fixed.size() == fixed);
      CHECK(view->rest.size() == std::size_t{32} - fixed);
    } else {
      CHECK(failed(view, Malformed::fixed));
    }
  }
  CHECK(failed(open_packet(packet_of(24, 0xffff, 0, 24), 0, Direction::request), Malformed::fixed));
}

TEST_CASE("the number of descriptors must be exactly what the header says") {
  for (std::uint16_t said : {0, 1, 2, 253, 254, 0xffff})
    for (std::size_t came : {0, 1, 2, 253})
      CHECK(open_packet(packet_of(24, 0, said, 24), came, Direction::request).has_value() == (said == came));
  CHECK(failed(open_packet(packet_of(24, 0, 1, 24), 0, Direction::request), Malformed::fd_count));
  // 65536 descriptors cannot come, but a count that was cut to 16 bits must not pass for 0.
  CHECK(!open_packet(packet_of(24, 0, 0, 24), 0x10000, Direction::request));
}

TEST_CASE("a request has neither high bit, a reply exactly one, an event exactly the other and no tag") {
  struct Row {
    int op;
    std::uint64_t tag;
    bool request, from_broker;
  };
  for (const Row& row : {Row{1, 0, true, false},
                         {1, 9, true, false},
                         {0x3fff, 0, true, false},
                         {0x8001, 0, false, true},
                         {0x8001, 9, false, true},
                         {0x4001, 0, false, true},
                         {0x4001, 9, false, false},
                         {0xc001, 0, false, false},
                         {0xffff, 0, false, false}}) {
    auto packet = packet_of(24, 0, 0, 24, static_cast<std::uint16_t>(row.op));
    std::memcpy(packet.data() + offsetof(shmbw_header, tag), &row.tag, sizeof row.tag);
    CAPTURE(row.op);
    CAPTURE(row.tag);
    auto request = open_packet(packet, 0, Direction::request), reply = open_packet(packet, 0, Direction::from_broker);
    CHECK(request.has_value() == row.request);
    CHECK(reply.has_value() == row.from_broker);
    if (!request) CHECK(failed(request, Malformed::op_bits));
  }
}

TEST_CASE("unknown flags and a status in a request leave the frame whole: they get an answer, not a hang-up") {
  auto packet = packet_of(24, 0, 0, 24);
  packet[offsetof(shmbw_header, flags)] = std::byte{0xff};
  packet[offsetof(shmbw_header, status)] = std::byte{0xff};
  auto view = open_packet(packet, 0, Direction::request);
  REQUIRE(view);
  CHECK(view->header.flags == 0xff);
  CHECK(view->header.status == 0xff);
}

TEST_CASE("every way to be malformed has words of its own") {
  std::vector<std::string> texts;
  for (auto kind : {Malformed::empty, Malformed::short_header, Malformed::size, Malformed::fixed, Malformed::fd_count,
                    Malformed::op_bits})
    texts.emplace_back(malformed_text(kind));
  std::sort(texts.begin(), texts.end());
  CHECK(std::unique(texts.begin(), texts.end()) == texts.end());
}

TEST_CASE("a batch of hostile counts is invalid and nothing is multiplied past its width") {
  CHECK(open_batch(1, 24, 24));
  CHECK(open_batch(253, 24, 253 * 24));
  CHECK(failed(open_batch(0, 24, 24), Status::invalid));
  CHECK(failed(open_batch(254, 24, 254 * 24), Status::invalid));
  CHECK(failed(open_batch(1, 0, 24), Status::invalid));
  CHECK(failed(open_batch(2, 24, 47), Status::invalid));
  CHECK(failed(open_batch(0xffff, 0xffff, 1024), Status::invalid));
  // Products that are small again in 16 bits: 128 * 512 = 2^16, 253 * 0xff03 = 0x(fc)00f7.
  CHECK(failed(open_batch(128, 512, 0), Status::invalid));
  CHECK(failed(open_batch(128, 513, 128), Status::invalid));
  CHECK(failed(open_batch(253, 0xff03, 1024), Status::invalid));
}

TEST_CASE("each element of a batch is where it should be, and the texts are what follows the last") {
  auto packet = batch_packet(3, 16, 3 * 16 + 5);
  for (int i = 0; i < 3; ++i) packet[static_cast<std::size_t>(32 + i * 16)] = static_cast<std::byte>(i + 1);
  std::memcpy(packet.data() + 32 + 48, "hello", 5);
  Exact exact(packet);
  auto batch = BatchView::open(*open_packet(exact, 0, Direction::request));
  REQUIRE(batch);
  REQUIRE(batch->count() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(batch->element<shmbw_region_ref>(i)->id == i + 1);
  TextReader texts = batch->texts();
  CHECK(texts.take(5) == "hello");
  CHECK(texts.done());
}

TEST_CASE("texts must be used up exactly, and a length beyond the end takes nothing") {
  const char raw[] = {'a', 'b', 'c'};
  TextReader texts(std::as_bytes(std::span(raw)));
  CHECK(texts.take(0) == "");
  CHECK(texts.take(2) == "ab");
  CHECK_FALSE(texts.done());
  CHECK_FALSE(texts.take(2));
  CHECK_FALSE(texts.take(SIZE_MAX));
  CHECK(texts.take(1) == "c");
  CHECK(texts.done());
  CHECK_FALSE(texts.take(1));
}

TEST_CASE("lengths of texts whose sum is small again in 16 or 32 bits do not pass") {
  // Two lengths of 0x8000 sum up to 0 in 16 bits; read one after the other the second finds nothing.
  std::vector<std::byte> rest(0x8000);
  TextReader texts(rest);
  CHECK(texts.take(0x8000));
  CHECK_FALSE(texts.take(0x8000));
  CHECK(texts.done());
  CHECK_FALSE(TextReader(rest).take(0x1'0000'0000));
}

TEST_CASE("a page of records ends when the bytes end") {
  std::vector<std::byte> rest;
  for (std::uint16_t i = 1; i <= 2; ++i) {
    shmbw_group_record record{};
    record.group = i;
    record.name_len = i;
    auto raw = bytes_of(record);
    rest.insert(rest.end(), raw.begin(), raw.end());
    rest.insert(rest.end(), i, std::byte{'n'});
  }
  Exact exact(rest);
  RecordReader records(exact, sizeof(shmbw_group_record));
  for (std::uint16_t i = 1; i <= 2; ++i) {
    auto record = records.next<shmbw_group_record>();
    REQUIRE(record);
    CHECK(record->group == i);
    CHECK(records.text(record->name_len) == std::string(i, 'n'));
  }
  CHECK(records.done());
  CHECK(failed(records.next<shmbw_group_record>(), Status::invalid));
  CHECK(failed(RecordReader(exact, 0).next<shmbw_group_record>(), Status::invalid));
}

// Every buffer size from nothing to enough: either the whole packet comes out, or none of it and nothing beyond the
// buffer has changed.
template <class Build>
void check_overflow(std::size_t needed, Build&& build) {
  for (std::size_t room = 0; room <= needed + 8; ++room) {
    std::vector<std::byte> memory(needed + 64, std::byte{0xee});
    std::span<std::byte> all = memory;
    Writer writer(all.first(room));
    build(writer);
    Bytes packet = writer.finish(0);
    CAPTURE(room);
    CHECK(packet.size() == (room >= needed ? needed : 0));
    for (std::size_t i = room; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte{0xee});
    if (!packet.empty()) CHECK(open_packet(packet, 0, Direction::request));
  }
}

TEST_CASE("the writer gives a whole packet or none, at every size of its buffer") {
  check_overflow(24 + 8 + 5, [](Writer& writer) {
    writer.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
    writer.text("hello");
  });
  check_overflow(24 + 8 + 2 * 24 + 3, [](Writer& writer) {
    writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 1, 2);
    writer.element(0, shmbw_release{});
    writer.element(1, shmbw_release{});
    writer.text("abc");
  });
  check_overflow(24, [](Writer& writer) { writer.begin_empty(SHMBW_OP_STATUS, 1, Status::ok); });
}

TEST_CASE("the writer refuses batches of 0, 254 and 65537 elements, and elements that are none of the batch") {
  std::vector<std::byte> memory(1 << 21);
  for (std::size_t count : {std::size_t{0}, std::size_t{254}, std::size_t{65537}, SIZE_MAX / 8}) {
    Writer writer(memory);
    writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 1, count);
    CHECK(writer.finish(0).empty());
    CHECK(writer.room() == 0);
  }
  Writer beyond(memory);
  beyond.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 1, 2);
  beyond.element(2, shmbw_release{});
  CHECK(beyond.finish(0).empty());
  Writer other(memory);
  other.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 1, 2);
  other.element(0, shmbw_inherit{});  // the same size: cannot be told apart
  other.element(1, shmbw_create{});
  CHECK(other.finish(0).empty());
}

TEST_CASE("the writer makes no packet that a receiver would have to refuse for its length") {
  std::vector<std::byte> memory(SHMBW_MAX_MESSAGE + 64);
  for (std::size_t extra : {0, 1}) {
    Writer writer(memory);
    writer.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
    writer.text(std::string(SHMBW_MAX_MESSAGE - 32 + extra, 'x'));
    CHECK(writer.finish(0).size() == (extra ? 0 : SHMBW_MAX_MESSAGE));
  }
  Writer many(memory);
  many.begin_empty(SHMBW_REPLY | SHMBW_OP_CREATE, 1, Status::ok);
  CHECK(many.finish(254).empty());
}

TEST_CASE("a writer that was never begun writes nothing, not even a size") {
  std::vector<std::byte> memory(64, std::byte{0xee});
  std::span<std::byte> all = memory;
  CHECK(Writer(all.first(2)).finish(0).empty());
  for (std::byte byte : memory) CHECK(byte == std::byte{0xee});
}

TEST_CASE("a writer starts again after an overflow, and room() returns the bytes left") {
  std::byte memory[64];
  Writer writer(memory);
  writer.begin(SHMBW_OP_STATUS, 1, Status::ok, shmbw_status{});
  CHECK(writer.room() == 32);
  writer.text(std::string(33, 'x'));
  CHECK(writer.room() == 0);
  CHECK(writer.finish(0).empty());
  writer.begin_empty(SHMBW_REPLY | SHMBW_OP_READY, 77, Status::stale, SHMBW_HEADER_CRITICAL);
  auto packet = writer.finish(2);
  auto view = open_packet(packet, 2, Direction::from_broker);
  REQUIRE(view);
  CHECK(view->header.tag == 77);
  CHECK(view->header.status == SHMB_E_STALE);
  CHECK(view->header.flags == SHMBW_HEADER_CRITICAL);
  CHECK(view->header.n_fds == 2);
}

TEST_CASE("the largest requests that the rules of names allow fit in a packet") {
  CHECK(32 + SHMBW_MAX_BATCH * (sizeof(shmbw_attach) + 2 * 96) <= SHMBW_MAX_MESSAGE);
  CHECK(32 + SHMBW_MAX_BATCH * (sizeof(shmbw_create) + 96) <= SHMBW_MAX_MESSAGE);
}

}  // namespace
