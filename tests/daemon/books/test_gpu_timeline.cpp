// SPDX-License-Identifier: Apache-2.0
// Timelines as the books keep them: what the end of a producer writes into the words, in which portions, and how many
// timelines there may be.
#include "base/mapping.hpp"
#include "proto/timeline_layout.hpp"
#include "tests/daemon/books/gpu_client.hpp"
#include "tests/harness/injected.hpp"

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

namespace {

constexpr std::uint32_t kPortion = 1024;  // words that one turn of the broker releases

// How many words of all have been released, by the status that stands in them.
std::uint32_t released(std::vector<MappedTimeline>& lines, std::uint32_t words) {
  std::uint32_t sum = 0;
  for (MappedTimeline& line : lines)
    for (std::uint32_t i = 0; i < words; ++i) sum += line.word(i).status != SHMBW_GPU_WORD_STATUS_OK;
  return sum;
}

// One turn of the broker's loop, if it has something to do now.
bool tick(World& world) {
  if (world.books->next_deadline() > world.now) return false;
  world.books->tick(world.now);
  return true;
}

}  // namespace

TEST_CASE("timelines that end together are released in portions, and others are served between these") {
  constexpr std::uint32_t kLines = 20, kWords = 512;
  World world;
  Client producer = world.client(), consumer = world.client(), bystander = world.client(2000);
  std::vector<MappedTimeline> lines;
  for (std::uint32_t i = 0; i < kLines; ++i) {
    lines.push_back(make_line(producer, kWords));
    REQUIRE(consumer.attach_id(lines.back().region).status == Status::ok);
  }
  producer.die();
  CHECK(states_told(consumer) == States(kLines, SHMBW_GPU_STATE_PRODUCER_DEAD));  // of all, at once
  std::uint32_t before = released(lines, kWords);
  CHECK(before == kPortion);
  while (before < kLines * kWords) {
    CHECK(bystander.create().status == Status::ok);
    CHECK(released(lines, kWords) == before);
    REQUIRE(tick(world));
    const std::uint32_t now = released(lines, kWords);
    CHECK(now == before + kPortion);
    before = now;
  }
  // So is what is written over for some seconds.
  world.advance(kSecond);
  for (MappedTimeline& line : lines) line.word(kWords - 1).counter = 6;
  world.now += kSecond / 10;
  std::uint32_t turns = 0, late = kLines;
  while (late != 0) {
    REQUIRE(tick(world));
    std::uint32_t left = 0;
    for (MappedTimeline& line : lines) left += line.word(kWords - 1).counter == 6;
    CHECK(late - left <= kPortion / kWords);
    late = left;
    ++turns;
  }
  CHECK(turns >= kLines * kWords / kPortion);
  world.advance(20 * kSecond);
  for (MappedTimeline& line : lines) CHECK(line.word(0).wakes == 1);
}

TEST_CASE("a timeline that no other process can have is not touched when its producer goes") {
  World world;
  Client producer = world.client();
  MappedTimeline alone = make_line(producer, 8), named = make_line(producer, 8, "steps"),
                 passed = make_line(producer, 8);
  REQUIRE(producer.ticket(passed.region).status() == Status::ok);
  producer.die();
  CHECK(alone.word(0).status == SHMBW_GPU_WORD_STATUS_OK);
  world.advance(kSecond);
  CHECK(alone.word(0).status == SHMBW_GPU_WORD_STATUS_OK);
  CHECK(alone.word(7).wakes == 0);
  CHECK(named.word(7).status == SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD);
  CHECK(passed.word(7).status == SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD);
}

TEST_CASE("a timeline that a forked child holds is released although no other process has it yet") {
  World world;
  Client producer = world.client(), late = world.client();
  MappedTimeline line = make_line(producer, 2);
  producer.pidfd();  // its child has the socket
  world.advance(0);
  CHECK(line.word(1).status == SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD);
  CHECK(timeline::reached(line.word(1).counter, 1));
  CHECK(late.attach_id(line.region).status == Status::ok);
}

TEST_CASE("one user has so many timelines, and all together have half of the mappings that the kernel allows") {
  Config config = private_config();
  config.limits.uid_timelines = 3;
  BrokerFacts facts;
  facts.mappings_limit = 10;
  World world(config, std::move(facts));
  Client first = world.client(1000), second = world.client(2000);
  shmbw_gpu_timeline wish{};
  wish.words = 1;
  auto refused = [&](Client& client) {
    Packet& packet = client.call(SHMBW_OP_GPU_TIMELINE, wish);
    return packet.status() == Status::ok ? Error{} : packet.error();
  };
  for (int i = 0; i < 3; ++i) make_line(first, 1);
  const Error of_uid = refused(first);
  CHECK(of_uid.status == Status::limit);
  CHECK(of_uid.shortage.slot == SHMBW_SLOT_TIMELINES);
  CHECK(of_uid.shortage.scope == SHMBW_SCOPE_UID);
  CHECK(of_uid.sentence == "limit: timelines of uid 1000: asked 1, used 3 of 3; raise limits.uid.1000.timelines");
  for (int i = 0; i < 2; ++i) make_line(second, 1);
  const Error of_all = refused(second);
  CHECK(of_all.status == Status::limit);
  CHECK(of_all.shortage.scope == SHMBW_SCOPE_HOST);
  CHECK(of_all.shortage.limit == 5);
  CHECK(of_all.sentence.find("vm.max_map_count") != std::string::npos);
  CHECK(first.create().status == Status::ok);
  first.close();
  CHECK(refused(second).sentence == "");
}

TEST_CASE("a refused timeline leaves nothing, whatever it was refused for") {
  Config config = private_config();
  config.limits.uid_timelines = 2;
  config.limits.uid_regions = 3;
  World world(config);
  Client client = world.client();
  for (int i = 0; i < 5; ++i) {
    const harness::Injected fault(fault::Call::mmap, ENOMEM);
    shmbw_gpu_timeline wish{};
    wish.words = 1;
    CHECK(client.call(SHMBW_OP_GPU_TIMELINE, wish).status() != Status::ok);
  }
  CHECK(client.status().regions == 0);
  make_line(client, 1);
  make_line(client, 1);
}

}  // namespace shmb::daemon::test
