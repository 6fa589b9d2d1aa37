// SPDX-License-Identifier: Apache-2.0
// The records of queues, lanes and the regions that lanes hold. Each call in these tests compares all records with the
// objects besides (World).
#include "tests/daemon/books/pool_client.hpp"
#include "tests/daemon/books/records_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

constexpr std::uint32_t kReader = SHMBW_QUEUE_OPEN_READER, kWriter = SHMBW_QUEUE_OPEN_WRITER;
constexpr std::uint32_t kMpmc = SHMBW_QUEUE_KIND_MPMC, kBroadcast = SHMBW_QUEUE_KIND_BROADCAST;

// The line of the one record of that kind; empty: there is none.
std::string line_of(const std::string& text, const std::string& kind) {
  const std::size_t at = text.find("\n" + kind + " ");
  if (at == text.npos) return {};
  CHECK(text.find("\n" + kind + " ", at + 1) == text.npos);
  return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

struct Scene {
  Scene() {
    at = map_pool(pool_create(keeper));
    map_pool(pool_join(writer, at.pool));
  }
  std::string records() { return text_in(ask_books(asker)); }

  World world;
  Client asker = world.admin(), keeper = world.client(), writer = world.client();  // in the pool: 0, 1
  PoolClient at;
};

}  // namespace

TEST_CASE("a queue and its lane have records from their first end to the end of the pool") {
  Scene scene;
  CHECK(line_of(scene.records(), "queue") == "");
  const auto queue = opened(queue_open(scene.writer, scene.at.pool, "jobs", {kMpmc, kWriter, 16, 128}));
  std::string text = scene.records();
  const std::string jobs = line_of(text, "queue"), lane = line_of(text, "lane");
  CHECK(has(jobs, " writers=2 "));
  CHECK(has(jobs, " serial=1 cells=16 cell_size=128 "));
  CHECK(has(jobs, " kind=2 state=1 "));
  CHECK(has(jobs, " name=\"jobs\""));
  CHECK(has(lane, " offset=" + std::to_string(scene.at.view.lane(queue.lane).offset)));
  CHECK(has(lane, " from=1 from_life=1 to=4294967295 "));
  CHECK(has(lane, " cells=16 cell_size=128 state=1"));
  CHECK(has(line_of(text, "pool"), " last_lane_serial=1"));

  // Its message stays, so the lane outlives its sender.
  publish_bytes(lane_words(scene.at.view, queue.lane), 0);
  scene.writer.die();
  text = scene.records();
  CHECK(has(line_of(text, "queue"), " deaths=1"));
  CHECK(has(line_of(text, "lane"), " state=2"));
  REQUIRE(queue_close(scene.keeper, scene.at.pool, queue, SHMBW_QUEUE_CLOSE_REMOVE).status() == Status::ok);
  text = scene.records();
  CHECK(line_of(text, "lane") == "");  // no reader can come any more
  const std::string last = line_of(text, "queue");
  CHECK(has(last, " serial=1 "));  // the next queue at the index gets another one
  CHECK_FALSE(has(last, " state="));
  REQUIRE(pool_leave(scene.keeper, scene.at.pool).status() == Status::ok);
  CHECK(line_of(scene.records(), "queue") == "");
}

TEST_CASE("a ring that waits for the next writer keeps its record") {
  Scene scene;
  const auto queue = opened(queue_open(scene.writer, scene.at.pool, "news", {kBroadcast, kWriter}));
  CHECK(has(line_of(scene.records(), "queue"), " generation=1"));
  scene.writer.die();
  scene.world.advance(kMinute);
  std::string text = scene.records();
  CHECK(has(line_of(text, "queue"), " writer_lane=4294967295"));
  CHECK(has(line_of(text, "lane"), " cells=8 "));
  CHECK_FALSE(has(line_of(text, "lane"), " state="));
  opened(queue_open(scene.keeper, scene.at.pool, "news", {kBroadcast, kWriter}));
  text = scene.records();
  CHECK(has(line_of(text, "lane"), " serial=2 "));
  CHECK(has(line_of(text, "queue"), " generation=2"));
  CHECK(queue.lane == 0);
}

TEST_CASE("a region that a lane holds has a record until the sender or the lane drops it") {
  Scene scene;
  const auto queue = opened(queue_open(scene.writer, scene.at.pool, "jobs", {kMpmc, kWriter}));
  const Created region = scene.writer.create();
  const auto hold = [&](std::uint32_t flags = 0) {
    return queue_hold(scene.writer, scene.at.pool, queue.lane, queue.lane_serial, region.ref(), flags);
  };
  REQUIRE(hold() == Status::ok);
  scene.writer.release(region.ref());
  const std::string first = line_of(scene.records(), "hold");
  CHECK(has(first, " region=" + std::to_string(region.ref().id)));
  SUBCASE("the sender drops it") { CHECK(hold(SHMBW_QUEUE_HOLD_DROP) == Status::ok); }
  SUBCASE("its end gives the lane up") {
    scene.writer.die();
    scene.world.advance(0);
  }
  CHECK(line_of(scene.records(), "hold") == "");
  CHECK(scene.world.status().regions == 0);
}

TEST_CASE("what its ends say of a lane is in its record") {
  Scene scene;
  const auto queue = opened(queue_open(scene.writer, scene.at.pool, "jobs", {kMpmc, kWriter}));
  opened(queue_open(scene.keeper, scene.at.pool, "jobs", {kMpmc, kReader}));
  lane_finished(scene.writer, scene.at.pool, queue.lane, queue.lane_serial, SHMBW_LANE_END_SENDER);
  CHECK(has(line_of(scene.records(), "lane"), " state=2 sender_finished=1"));
  Client second = scene.world.client();
  map_pool(pool_join(second, scene.at.pool));
  opened(queue_open(second, scene.at.pool, "jobs", {kMpmc, kReader}));
  lane_finished(second, scene.at.pool, queue.lane, queue.lane_serial, SHMBW_LANE_END_RECEIVER);
  CHECK(has(line_of(scene.records(), "lane"), " through=4 "));
  lane_finished(scene.keeper, scene.at.pool, queue.lane, queue.lane_serial, SHMBW_LANE_END_RECEIVER);
  CHECK(line_of(scene.records(), "lane") == "");
}
