// SPDX-License-Identifier: Apache-2.0
// Timelines in the books: whoever waits for a producer that is gone is released, and told why.
#include "base/mapping.hpp"
#include "proto/timeline_layout.hpp"
#include "tests/daemon/gpu_client.hpp"

namespace shmb::daemon::test {
namespace {

struct MappedTimeline {
  shmbw_region_ref region{};
  Mapping map;
  timeline::Word& word(std::size_t i) { return reinterpret_cast<timeline::Word*>(map.data())[i]; }
};

MappedTimeline make_line(Client& client, std::uint32_t words, std::string_view name = {}) {
  shmbw_gpu_timeline wish{};
  wish.words = words;
  wish.name_len = static_cast<std::uint16_t>(name.size());
  Packet& packet = client.call(SHMBW_OP_GPU_TIMELINE, wish, name);
  REQUIRE(packet.status() == Status::ok);
  const auto reply = packet.fixed<shmbw_gpu_timeline_reply>();
  REQUIRE(packet.fds.size() == 1);
  return {reply.region, std::move(*Mapping::map(packet.fds[0].get(), 0, reply.bytes, Access::read_write))};
}

}  // namespace

TEST_CASE("the death of a timeline's producer writes the status of every word and releases every waiter") {
  World world;
  Client producer = world.client(), consumer = world.client();
  MappedTimeline line = make_line(producer, 64, "steps");
  line.word(0).announced = 7;
  line.word(0).counter = 5;
  const auto attached = consumer.attach_id(line.region);
  REQUIRE(attached.status == Status::ok);
  CHECK((::fcntl(attached.memory.get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  producer.die();
  CHECK(states_told(consumer) == States{SHMBW_GPU_STATE_PRODUCER_DEAD});
  for (std::size_t i : {std::size_t{0}, std::size_t{63}}) {
    CHECK(line.word(i).status == SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD);
    CHECK(timeline::reached(line.word(i).counter, line.word(i).announced));
    CHECK(line.word(i).wakes == 1);
  }
  CHECK(timeline::reached(line.word(0).counter, 1000));
  CHECK(line.word(0).last == 5);  // what was done stays known
  // A write of the dead process' stream that lands later is written over.
  line.word(0).counter = 6;
  world.advance(kSecond);
  CHECK(timeline::reached(line.word(0).counter, 7));
  CHECK(line.word(0).wakes == 2);
  CHECK(line.word(0).last == 6);
  world.advance(10 * kSecond);
  line.word(0).counter = 6;
  world.advance(10 * kSecond);
  CHECK(line.word(0).counter == 6);  // for some seconds, not for ever
  CHECK(gpu_rows(consumer).at(0).kind == SHMBW_GPU_KIND_TIMELINE);
}

TEST_CASE("a producer that closes its timeline releases the waiters too, and says why") {
  World world;
  Client producer = world.client(), consumer = world.client();
  MappedTimeline line = make_line(producer, 1);
  consumer.attach_id(line.region);
  producer.release(line.region);
  CHECK(line.word(0).status == SHMBW_GPU_WORD_STATUS_CLOSED);
  CHECK(timeline::reached(line.word(0).counter, 1));
}

TEST_CASE("a producer that says it is done releases the waiters, and keeps what it has as a reader") {
  World world;
  Client producer = world.client(), consumer = world.client();
  MappedTimeline line = make_line(producer, 1);
  consumer.attach_id(line.region);
  REQUIRE(producer.attach_id(line.region).status == Status::ok);
  CHECK(report(consumer, line.region, SHMBW_GPU_FINDING_WRITTEN).status == Status::denied);
  CHECK(line.word(0).status == SHMBW_GPU_WORD_STATUS_OK);
  CHECK(report(producer, line.region, SHMBW_GPU_FINDING_WRITTEN).status == Status::ok);
  CHECK(line.word(0).status == SHMBW_GPU_WORD_STATUS_CLOSED);
  CHECK(report(producer, line.region, SHMBW_GPU_FINDING_WRITTEN).status == Status::denied);
  CHECK(report(consumer, line.region, SHMBW_GPU_FINDING_IMPORTED).status == Status::other_kind);
  consumer.release(line.region);
  line.word(0).counter = 0;
  world.advance(kSecond);
  CHECK(timeline::reached(line.word(0).counter, 1));  // there still, for the producer's other handle
}

TEST_CASE("an attach that asks for a timeline gets no other region, and closes the writing of none") {
  World world;
  Client maker = world.client(), reader = world.client();
  const auto made = maker.create();
  REQUIRE(made.status == Status::ok);
  CHECK(reader.attach_id(made.ref(), SHMBW_RIGHT_MAP_READ, SHMBW_ATTACH_TIMELINE).status == Status::invalid);
  CHECK(reader.attach_id(made.ref(), SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE).status == Status::ok);
  MappedTimeline line = make_line(maker, 1);
  CHECK(reader.attach_id(line.region, SHMBW_RIGHT_MAP_READ, SHMBW_ATTACH_TIMELINE).status == Status::ok);
}

TEST_CASE("a counter goes on past the largest number, and so does its release") {
  World world;
  Client producer = world.client(), consumer = world.client();
  MappedTimeline line = make_line(producer, 1);
  consumer.attach_id(line.region);
  line.word(0).announced = UINT64_MAX - 2;
  line.word(0).counter = UINT64_MAX - 2;
  CHECK_FALSE(timeline::reached(line.word(0).counter, 3));
  producer.die();
  CHECK(timeline::reached(line.word(0).counter, 3));
}

TEST_CASE("a timeline of no words or too many is refused") {
  World world;
  Client client = world.client();
  for (std::uint32_t words : {0U, timeline::kMaxWords + 1}) {
    shmbw_gpu_timeline wish{};
    wish.words = words;
    CHECK(client.call(SHMBW_OP_GPU_TIMELINE, wish).status() == Status::invalid);
  }
  make_line(client, timeline::kMaxWords);
}

}  // namespace shmb::daemon::test
