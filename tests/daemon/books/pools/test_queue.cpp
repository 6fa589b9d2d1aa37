// SPDX-License-Identifier: Apache-2.0
// Queues and lanes in the books: who may open what, when lanes come and go, what unread messages keep, and what LIST
// tells of it all.
#include "base/sys_process.hpp"
#include "tests/daemon/books/pool_client.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using pool::LaneState;

namespace {

constexpr std::uint32_t kReader = SHMBW_QUEUE_OPEN_READER, kWriter = SHMBW_QUEUE_OPEN_WRITER;
constexpr std::uint32_t kSpsc = SHMBW_QUEUE_KIND_SPSC, kMpmc = SHMBW_QUEUE_KIND_MPMC,
                        kBroadcast = SHMBW_QUEUE_KIND_BROADCAST;
constexpr std::uint32_t kSender = SHMBW_LANE_END_SENDER, kReceiver = SHMBW_LANE_END_RECEIVER;

struct Scene {
  explicit Scene(const PoolRequest& wish = {}) {
    at = map_pool(pool_create(keeper, wish));
    id = at.pool;
    map_pool(pool_join(writer, id));
    map_pool(pool_join(reader, id));
  }
  Client join() {
    Client client = world.client();
    REQUIRE(pool_join(client, id).status() == Status::ok);
    return client;
  }
  const pool::View& view() const { return at.view; }
  std::uint32_t serial(std::uint32_t lane) const { return pool::Stamp::of(view().lane(lane).stamp.load()).serial; }
  std::uint8_t state(std::uint32_t index) const { return participant(view(), index).state; }

  World world;
  Client keeper = world.client(), writer = world.client(), reader = world.client();  // 0, 1, 2
  PoolClient at;
  std::uint64_t id = 0;
};

constexpr std::uint8_t kFree = static_cast<std::uint8_t>(pool::ParticipantState::free);
constexpr std::uint8_t kDead = static_cast<std::uint8_t>(pool::ParticipantState::dead);
constexpr std::uint8_t kLeft = static_cast<std::uint8_t>(pool::ParticipantState::left);

}  // namespace

TEST_CASE("an spsc queue gets its lane when both ends are there, and a second of either end is busy") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  CHECK(lanes_in_use(scene.view()) == 0);
  auto queue = opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  CHECK(queue.lane == pool::kNone);
  REQUIRE(lanes_in_use(scene.view()) == 1);
  const pool::LaneEntry& lane = scene.view().lane(0);
  CHECK(lane.from == 1);
  CHECK(lane.to == 2);
  CHECK(lane.queue == queue.queue);
  CHECK(scene.view().queue(queue.queue).readers.load() == 0b100);
  CHECK(scene.view().queue(queue.queue).writers.load() == 0b010);
  CHECK(queue_open(scene.keeper, scene.id, "q", {kSpsc, kWriter}).status() == Status::busy);
  CHECK(queue_open(scene.keeper, scene.id, "q", {kSpsc, kReader}).status() == Status::busy);
  CHECK(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}).status() == Status::busy);
}

TEST_CASE("bad words of an open are refused one by one and leave no queue") {
  Scene scene;
  const std::pair<QueueRequest, Status> bad[] = {
      {{kSpsc, 0}, Status::invalid},
      {{0, kReader}, Status::invalid},
      {{9, kReader}, Status::invalid},
      {{kSpsc, kReader | 1u << 30}, Status::unknown_flags},
      {{kSpsc, kReader, 3}, Status::invalid},
      {{kSpsc, kReader, 1}, Status::invalid},
      {{kSpsc, kReader, 131072}, Status::invalid},
      {{kSpsc, kReader, 8, 65}, Status::invalid},
      {{kSpsc, kReader | SHMBW_QUEUE_OPEN_DROP_OLDEST}, Status::invalid},
      {{kBroadcast, kReader | SHMBW_QUEUE_OPEN_AT_LEAST_ONCE}, Status::invalid},
      {{kSpsc, kReader | SHMBW_QUEUE_OPEN_OPEN_ONLY}, Status::not_found},
      {{kSpsc, kReader | SHMBW_QUEUE_OPEN_OPEN_ONLY | SHMBW_QUEUE_OPEN_CREATE_ONLY}, Status::invalid},
      {{kMpmc, kWriter, 65536, 128}, Status::limit},
  };
  for (const auto& [wish, status] : bad) CHECK(queue_open(scene.reader, scene.id, "q", wish).status() == status);
  CHECK(queue_open(scene.reader, scene.id, "").status() == Status::invalid);
  CHECK(queue_open(scene.reader, scene.id, "a/b").status() == Status::invalid);
  CHECK(scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES).empty());
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  CHECK(queue_open(scene.writer, scene.id, "q", {kMpmc, kWriter}).status() == Status::exists);
  CHECK(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter, 16}).status() == Status::exists);
  CHECK(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter | SHMBW_QUEUE_OPEN_EXPIRING}).status() ==
        Status::exists);
  CHECK(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter | SHMBW_QUEUE_OPEN_CREATE_ONLY}).status() ==
        Status::exists);
  CHECK(queue_open(scene.writer, scene.id, "q", {0, kWriter | SHMBW_QUEUE_OPEN_OPEN_ONLY, 0, 0}).status() ==
        Status::ok);
}

TEST_CASE("tables that are full name the pool, the table and what would help") {
  Scene scene({.lanes = 1, .queues = 2});
  opened(queue_open(scene.writer, scene.id, "a", {kMpmc, kWriter}));
  Packet& lanes = queue_open(scene.writer, scene.id, "b", {kMpmc, kWriter});
  CHECK(lanes.status() == Status::limit);
  CHECK(lanes.error().shortage.slot == SHMBW_SLOT_LANES);
  CHECK(lanes.error().shortage.scope_id == scene.id);
  opened(queue_open(scene.writer, scene.id, "b", {kMpmc, kReader}));  // the failed one left no queue
  CHECK(queue_open(scene.writer, scene.id, "c", {kMpmc, kReader}).error().shortage.slot == SHMBW_SLOT_QUEUES);
}

TEST_CASE("an open that is refused for want of a lane does not keep another session's open waiting") {
  Scene scene({.lanes = 1});
  opened(queue_open(scene.writer, scene.id, "a", {kMpmc, kWriter}));
  CHECK(queue_open(scene.writer, scene.id, "b", {kMpmc, kWriter}).status() == Status::limit);
  CHECK(queue_open(scene.reader, scene.id, "c", {kMpmc, kWriter}).status() == Status::limit);
  opened(queue_open(scene.reader, scene.id, "a", {kMpmc, kReader}));
}

TEST_CASE("a dead writer's message keeps its slot and its index until the reader is through") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  auto queue = opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  const pool::LaneView lane = lane_words(scene.view(), 0);
  scene.view().slot(5).holders = 0b10;
  scene.view().slot(6).holders = 0b10;
  publish_slot(lane, 0, 5);
  scene.writer.pidfd();
  CHECK(lane_state(scene.view(), 0) == LaneState::writer_gone);
  CHECK(scene.view().queue(queue.queue).writers.load() == 0);
  CHECK(scene.view().queue(queue.queue).deaths.load() == 1);
  scene.world.advance(0);
  CHECK(scene.view().slot(5).holders.load() == 0b10);
  CHECK(scene.view().slot(6).holders.load() == 0);
  CHECK(scene.state(1) == kDead);
  // The reader keeps the slot, then says that it is through.
  scene.view().slot(5).holders.fetch_or(0b100);
  lane.head() = 1;
  lane_finished(scene.reader, scene.id, 0, scene.serial(0), kReceiver);
  scene.world.advance(0);
  CHECK(lane_state(scene.view(), 0) == LaneState::free);
  CHECK(scene.view().slot(5).holders.load() == 0b100);
  CHECK(scene.state(1) == kFree);
  scene.writer.die();
}

TEST_CASE(
    "through is taken once, from an end of that lane, of that serial, and from receivers only when nothing comes") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  const std::uint32_t serial = scene.serial(0);
  for (std::uint32_t lane : {0u, 1u, 4000u, UINT32_MAX})
    for (std::uint32_t end : {0u, kSender, kReceiver, 77u}) {
      lane_finished(scene.keeper, scene.id, lane, serial, end);      // no end of it
      lane_finished(scene.reader, scene.id, lane, serial + 1, end);  // another one
    }
  lane_finished(scene.reader, scene.id, 0, serial, kReceiver);  // the writer lives
  lane_finished(scene.reader, scene.id, 0, serial, kSender);
  lane_finished(scene.writer, 999, 0, serial, kSender);
  CHECK(lane_state(scene.view(), 0) == LaneState::open);
  lane_finished(scene.writer, scene.id, 0, serial, kSender);
  CHECK(lane_state(scene.view(), 0) == LaneState::writer_gone);
  lane_finished(scene.reader, scene.id, 0, serial, kReceiver);
  CHECK(lane_state(scene.view(), 0) == LaneState::free);
}

TEST_CASE("a reader's death leaves its lane to the sender, and the next reader gets one of its own") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  scene.reader.pidfd();
  CHECK(lane_state(scene.view(), 0) == LaneState::reader_gone);
  opened(queue_open(scene.keeper, scene.id, "q", {kSpsc, kReader}));
  CHECK(lanes_in_use(scene.view()) == 2);
  CHECK(scene.view().lane(1).to == 0);
  CHECK(scene.view().lane(0).offset != scene.view().lane(1).offset);
  CHECK(scene.serial(1) > scene.serial(0));
  scene.world.advance(kSecond);
  CHECK(lane_state(scene.view(), 0) == LaneState::reader_gone);  // its sender may still write into it
  lane_finished(scene.writer, scene.id, 0, scene.serial(0), kSender);
  CHECK(lane_state(scene.view(), 0) == LaneState::free);
  scene.reader.die();
}

TEST_CASE("with both ends dead a lane is free at once and its memory is clean for the next") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  const std::uint64_t offset = scene.view().lane(0).offset;
  publish_slot(lane_words(scene.view(), 0), 0, 3);
  lane_words(scene.view(), 0).head() = 7;
  scene.view().slot(3).holders = 0b10;
  scene.reader.die();
  scene.writer.die();
  scene.world.advance(0);
  CHECK(lanes_in_use(scene.view()) == 0);
  CHECK(scene.view().slot(3).holders.load() == 0);
  Client again = scene.join();
  opened(queue_open(again, scene.id, "q", {kSpsc, kReader | kWriter}));
  REQUIRE(lane_state(scene.view(), 0) == LaneState::open);
  CHECK(scene.view().lane(0).offset == offset);
  CHECK(lane_words(scene.view(), 0).head().load() == 0);
  CHECK(lane_words(scene.view(), 0).cell(0).word.load() == 0);
}

TEST_CASE("an mpmc lane of a dead producer waits for consumers, also later ones, until all is done") {
  Scene scene;
  auto queue = opened(queue_open(scene.writer, scene.id, "jobs", {kMpmc, kWriter}));
  const pool::LaneView lane = lane_words(scene.view(), queue.lane);
  scene.view().slot(4).holders = 0b10;
  publish_slot(lane, 0, 4);
  scene.writer.die();
  scene.world.advance(kMinute);
  CHECK(scene.state(1) == kDead);
  opened(queue_open(scene.reader, scene.id, "jobs", {kMpmc, kReader}));
  // It claims the message and is killed: there again for the next.
  lane.cell(0).word = pool::CellWord{0, pool::kClaimedBy + 2, pool::kTagSlot}.word();
  scene.reader.die();
  scene.world.advance(0);
  CHECK(pool::CellWord::of(lane.cell(0).word.load()).is(pool::CellState::full));
  CHECK(scene.state(2) == kFree);
  opened(queue_open(scene.keeper, scene.id, "jobs", {kMpmc, kReader}));
  scene.view().slot(4).holders.fetch_or(1);
  lane.cell(0).word = pool::CellWord::empty(8);
  scene.world.advance(kMinute);
  CHECK(lane_state(scene.view(), queue.lane) == LaneState::writer_gone);  // the consumer may be looking at it
  CHECK(scene.view().slot(4).holders.load() == 1);
  CHECK(scene.state(1) == kFree);
  lane_finished(scene.keeper, scene.id, queue.lane, queue.lane_serial, kReceiver);
  CHECK(lane_state(scene.view(), queue.lane) == LaneState::free);
}

TEST_CASE("the word of a dead consumer does not count for the next one on its index, which may read the lane again") {
  Scene scene;
  auto queue = opened(queue_open(scene.writer, scene.id, "jobs", {kMpmc, kWriter}));
  Client other = scene.join();
  opened(queue_open(other, scene.id, "jobs", {kMpmc, kReader}));
  opened(queue_open(scene.reader, scene.id, "jobs", {kMpmc, kReader}));
  scene.writer.die();
  scene.world.advance(kMinute);
  lane_finished(scene.keeper, scene.id, queue.lane, queue.lane_serial, kReceiver);  // no reader at all
  lane_finished(scene.reader, scene.id, queue.lane, queue.lane_serial, kReceiver);
  scene.reader.die();
  scene.world.advance(0);
  REQUIRE(scene.state(2) == kFree);
  Client next = scene.world.client();  // on the lowest free index first: the writer's, then the reader's
  REQUIRE(pool_join(next, scene.id).status() == Status::ok);
  Client last = scene.world.client();
  REQUIRE(pool_join(last, scene.id).status() == Status::ok);
  opened(queue_open(next, scene.id, "jobs", {kMpmc, kReader}));
  opened(queue_open(last, scene.id, "jobs", {kMpmc, kReader}));
  lane_finished(other, scene.id, queue.lane, queue.lane_serial, kReceiver);
  lane_finished(next, scene.id, queue.lane, queue.lane_serial, kReceiver);
  CHECK(lane_state(scene.view(), queue.lane) == LaneState::writer_gone);  // the last one may be looking at it
  lane_finished(last, scene.id, queue.lane, queue.lane_serial, kReceiver);
  CHECK(lane_state(scene.view(), queue.lane) == LaneState::free);
}

TEST_CASE("messages of a dead producer that expire give its slots back though no reader takes them") {
  Scene scene;
  auto queue = opened(queue_open(scene.writer, scene.id, "jobs", {kMpmc, kWriter | SHMBW_QUEUE_OPEN_EXPIRING}));
  const pool::LaneView lane = lane_words(scene.view(), queue.lane);
  scene.view().slot(4).holders = 0b10;
  publish_slot(lane, 0, 4, true, 1);  // long over, by the clock of deadlines
  scene.writer.die();
  scene.world.advance(kMinute);
  CHECK(scene.view().slot(4).holders.load() == 0);
  CHECK(scene.state(1) == kFree);
  CHECK(lane_state(scene.view(), queue.lane) == LaneState::free);
}

TEST_CASE("a broadcast queue's next writer gets a new generation at once, while readers finish the old ring") {
  Scene scene;
  auto first = opened(queue_open(scene.writer, scene.id, "news", {kBroadcast, kWriter}));
  auto queue = opened(queue_open(scene.reader, scene.id, "news", {kBroadcast, kReader}));
  const pool::QueueEntry& entry = scene.view().queue(queue.queue);
  CHECK(entry.generation.load() == 1);
  CHECK(entry.writer_lane.load() == first.lane);
  const pool::LaneView ring = lane_words(scene.view(), first.lane);
  ring.reader(2).position = 1;
  scene.view().slot(1).holders = 0b10;
  publish_slot(ring, 0, 1);
  scene.writer.die();
  CHECK(entry.writer_lane.load() == pool::kNone);
  auto second = opened(queue_open(scene.keeper, scene.id, "news", {kBroadcast, kWriter}));
  CHECK(entry.generation.load() == 2);
  CHECK(second.lane != first.lane);
  scene.world.advance(kSecond);
  CHECK(scene.view().slot(1).holders.load() == 0b10);
  ring.reader(2).position = 0;
  scene.world.advance(2 * kSecond);  // also without a word
  CHECK(scene.view().slot(1).holders.load() == 0);
  CHECK(lane_state(scene.view(), first.lane) == LaneState::free);
  // A reader about to join may still store its position: only rings of the same queue use that memory again.
  opened(queue_open(scene.keeper, scene.id, "jobs", {kMpmc, kWriter}));
  const pool::LaneEntry& kept = scene.view().lane(first.lane);
  CHECK(kept.cells != 0);
  queue_close(scene.keeper, scene.id, second, SHMBW_QUEUE_CLOSE_WRITER);
  auto third = opened(queue_open(scene.keeper, scene.id, "news", {kBroadcast, kWriter}));
  CHECK(third.lane == first.lane);
}

TEST_CASE("a broadcast reader is attached to the next writer's ring at its first message, until it closes or dies") {
  Scene scene;
  auto queue = opened(queue_open(scene.reader, scene.id, "q", {kBroadcast, kReader}));
  auto ring = opened(queue_open(scene.writer, scene.id, "q", {kBroadcast, kWriter}));
  const pool::LaneView words = lane_words(scene.view(), ring.lane);
  CHECK(words.reader(2).position == 1);
  CHECK(words.reader(0).position == 0);
  publish_bytes(words, 0);
  SUBCASE("a ring that it has not read stays when its writer has left") {
    CHECK(pool_leave(scene.writer, scene.id).status() == Status::ok);
    scene.world.advance(kSecond);
    CHECK(lane_state(scene.view(), ring.lane) == LaneState::writer_gone);
    lane_finished(scene.reader, scene.id, ring.lane, ring.lane_serial, kReceiver);
    CHECK(lane_state(scene.view(), ring.lane) == LaneState::free);
  }
  SUBCASE("closed") {
    CHECK(queue_close(scene.reader, scene.id, queue, SHMBW_QUEUE_CLOSE_READER).status() == Status::ok);
    CHECK(words.reader(2).position == 0);
  }
  SUBCASE("dead") {
    scene.reader.die();
    scene.world.advance(kSecond);
    CHECK(words.reader(2).position == 0);
    CHECK(scene.state(2) == kFree);
  }
}

TEST_CASE("a participant that leaves with unread messages leaves an index that waits for their readers") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  scene.view().slot(2).holders = 0b10;
  publish_slot(lane_words(scene.view(), 0), 0, 2);
  CHECK(pool_leave(scene.writer, scene.id).fixed<shmbw_pool_leave_reply>().unread == 1);
  scene.world.advance(kSecond);
  CHECK(scene.state(1) == kLeft);
  CHECK(scene.view().slot(2).holders.load() == 0b10);
  CHECK(scene.view().queue(0).deaths.load() == 0);
  auto rows = scene.keeper.rows<shmbw_participant_record>(SHMBW_TABLE_PARTICIPANTS);
  REQUIRE(rows.size() == 3);
  CHECK(rows[1].state == kLeft);
  CHECK(rows[1].unread == 1);
  CHECK(rows[1].session == 0);
  CHECK(scene.keeper.rows<shmbw_pool_record>(SHMBW_TABLE_POOLS).at(0).leaving == 1);
  PoolClient again = map_pool(pool_join(scene.writer, scene.id));
  CHECK(again.index == 3);
  scene.reader.die();
  scene.world.advance(kSecond);
  CHECK(scene.state(1) == kFree);
}

TEST_CASE("a queue stays when its ends are closed, is closed for all by one, and removed with its last end and lane") {
  Scene scene;
  auto queue = opened(queue_open(scene.writer, scene.id, "q", {kMpmc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kMpmc, kReader}));
  CHECK(queue_close(scene.keeper, scene.id, queue, SHMBW_QUEUE_CLOSE_READER).status() == Status::not_found);
  CHECK(queue_close(scene.keeper, scene.id, queue, 1u << 20).status() == Status::unknown_flags);
  CHECK(queue_close(scene.keeper, scene.id, {queue.queue, queue.serial + 1, 0, 0}, 0).status() == Status::not_found);
  CHECK(queue_close(scene.keeper, scene.id, {9999, 1, 0, 0}, 0).status() == Status::not_found);
  Packet& closed = queue_close(scene.keeper, scene.id, queue, SHMBW_QUEUE_CLOSE_ALL | SHMBW_QUEUE_CLOSE_REMOVE);
  CHECK(closed.fixed<shmbw_queue_close_reply>().readers == 1);
  CHECK(queue_open(scene.keeper, scene.id, "q", {kMpmc, kReader}).fixed<shmbw_queue_open_reply>().queue != queue.queue);
  queue_close(scene.reader, scene.id, queue, SHMBW_QUEUE_CLOSE_READER);
  queue_close(scene.writer, scene.id, queue, SHMBW_QUEUE_CLOSE_WRITER);
  CHECK(scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES).size() == 2);
  lane_finished(scene.writer, scene.id, queue.lane, queue.lane_serial, kSender);
  CHECK(scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES).size() == 1);
  auto reused = opened(queue_open(scene.writer, scene.id, "r", {kMpmc, kWriter}));
  CHECK(reused.queue == queue.queue);
  CHECK(reused.serial == queue.serial + 1);
}

TEST_CASE("a lane holds the regions of its messages, also after its sender, until it is recycled") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  Created region = scene.writer.create(), dropped = scene.writer.create();
  const std::uint32_t serial = scene.serial(0);
  CHECK(queue_hold(scene.reader, scene.id, 0, serial, region.ref()) == Status::not_found);  // not its lane
  CHECK(queue_hold(scene.writer, scene.id, 0, serial + 1, region.ref()) == Status::not_found);
  CHECK(queue_hold(scene.writer, scene.id, 99'999, serial, region.ref()) == Status::not_found);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, {4711, 1, 0}) == Status::not_found);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, {region.ref().id, 8, 0}) == Status::stale);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref(), 2) == Status::unknown_flags);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref(), SHMBW_QUEUE_HOLD_DROP) == Status::not_found);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref()) == Status::ok);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref()) == Status::ok);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, dropped.ref()) == Status::ok);
  CHECK(scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES).at(0).regions == 2);
  scene.writer.release(dropped.ref());
  CHECK(scene.world.status().regions == 2);
  CHECK(queue_hold(scene.writer, scene.id, 0, serial, dropped.ref(), SHMBW_QUEUE_HOLD_DROP) == Status::ok);
  CHECK(scene.world.status().regions == 1);
  publish_bytes(lane_words(scene.view(), 0), 0);
  scene.writer.die();
  scene.world.advance(kMinute);
  CHECK(scene.world.status().regions == 1);
  CHECK(scene.reader.attach_id(region.ref()).status == Status::ok);
  scene.reader.release(region.ref());
  lane_words(scene.view(), 0).head() = 1;
  lane_finished(scene.reader, scene.id, 0, serial, kReceiver);
  CHECK(scene.world.status().regions == 0);
}

TEST_CASE("a region that was sent is used again, unless one that had it went without saying that it is unmapped") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  const std::uint32_t serial = scene.serial(0);
  REQUIRE(scene.writer.make_group({.name = "g"}).status() == Status::ok);
  for (Client* client : {&scene.writer, &scene.reader}) REQUIRE(client->join("g").status() == Status::ok);
  Created region = scene.writer.create({.length = 4 * kMiB});
  REQUIRE(queue_hold(scene.writer, scene.id, 0, serial, region.ref()) == Status::ok);
  REQUIRE(scene.reader.attach_id(region.ref(), kWrite).status == Status::ok);
  scene.writer.release(region.ref(), 0, SHMBW_RELEASE_RECYCLE);
  SUBCASE("all did") {
    scene.reader.release(region.ref(), 0, SHMBW_RELEASE_RECYCLE);
    CHECK(scene.world.status().bytes_cached == 0);
    CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref(), SHMBW_QUEUE_HOLD_DROP) == Status::ok);
    CHECK(scene.world.status().bytes_cached == 4 * kMiB);
  }
  SUBCASE("one died") {
    scene.reader.die();
    CHECK(queue_hold(scene.writer, scene.id, 0, serial, region.ref(), SHMBW_QUEUE_HOLD_DROP) == Status::ok);
    CHECK(scene.world.status().bytes_cached == 0);
    CHECK(scene.world.status().regions == 0);
  }
}

TEST_CASE("LIST tells depth, lag, loss, slots and holders, bounded whatever stands in the control area") {
  Scene scene({.slots = 16});
  Created region = scene.keeper.create({.length = 65536, .flags = SHMBW_CREATE_MANY_WRITERS});
  pool_segment(scene.keeper, scene.id, region.ref(), 1024, 16);
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  auto news = opened(queue_open(scene.writer, scene.id, "news", {kBroadcast, kWriter}));
  opened(queue_open(scene.reader, scene.id, "news", {kBroadcast, kReader}));
  const pool::LaneView lane = lane_words(scene.view(), 0), ring = lane_words(scene.view(), news.lane);
  for (std::uint64_t i = 0; i < 3; ++i) publish_bytes(lane, i);
  ring.tail() = 20;
  ring.reader(2).position = 16;
  ring.reader(2).lost = 9;
  for (std::uint32_t slot : {1u, 2u, 3u}) scene.view().slot(slot).holders = slot == 3 ? 0b110 : 0b10;
  auto queues = scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES);
  REQUIRE(queues.size() == 2);
  CHECK(queues[0].depth == 3);
  CHECK(queues[0].readers == 1);
  CHECK(queues[1].lag == 5);
  CHECK(queues[1].lost == 9);
  auto pools = scene.keeper.rows<shmbw_pool_record>(SHMBW_TABLE_POOLS);
  REQUIRE(pools.size() == 1);
  CHECK(pools[0].slots == 16);
  CHECK(pools[0].slots_used == 3);
  CHECK(pools[0].lanes == 2);
  CHECK(pools[0].participants == 3);
  CHECK(pools[0].bytes == pools[0].control_bytes + 65536);
  auto places = scene.keeper.rows<shmbw_participant_record>(SHMBW_TABLE_PARTICIPANTS);
  REQUIRE(places.size() == 3);
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_PARTICIPANTS;
  CHECK(scene.keeper.list(wish).fixed<shmbw_list_reply>().total_count == 3);
  CHECK(places[1].slots_held == 3);
  CHECK(places[2].slots_held == 1);
  CHECK(places[1].writing == 2);
  CHECK(places[1].unread == 3);
  auto* words = reinterpret_cast<std::uint64_t*>(scene.at.control.data());
  for (std::size_t i = 0; i < scene.at.control.size() / 8; ++i)
    words[i] = i % 2 == 0 ? UINT64_MAX : i * 0x9e3779b97f4a7c15;
  for (const auto& row : scene.keeper.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES)) CHECK(row.depth <= 8);
  CHECK(scene.keeper.rows<shmbw_pool_record>(SHMBW_TABLE_POOLS).at(0).slots_used <= 16);
  Client stranger = scene.world.client(2000);
  CHECK(stranger.rows<shmbw_pool_record>(SHMBW_TABLE_POOLS).empty());
  CHECK(stranger.rows<shmbw_queue_record>(SHMBW_TABLE_QUEUES).empty());
  CHECK(stranger.rows<shmbw_participant_record>(SHMBW_TABLE_PARTICIPANTS).empty());
}

TEST_CASE("impossible words of a dead participant break its pool and nothing else") {
  Scene scene;
  opened(queue_open(scene.writer, scene.id, "q", {kSpsc, kWriter}));
  opened(queue_open(scene.reader, scene.id, "q", {kSpsc, kReader}));
  PoolClient other = map_pool(pool_create(scene.keeper));
  publish_slot(lane_words(scene.view(), 0), 0, 1'000'000);
  scene.writer.die();
  scene.world.advance(0);
  CHECK(scene.view().header().broken.load() == static_cast<std::uint32_t>(pool::Broken::impossible));
  CHECK(queue_open(scene.reader, scene.id, "r", {kSpsc, kReader}).status() == Status::broken);
  CHECK(other.view.header().broken.load() == 0);
  CHECK(queue_open(scene.keeper, other.pool, "r", {kSpsc, kReader}).status() == Status::ok);
  CHECK(pool_leave(scene.reader, scene.id).status() == Status::ok);
}

TEST_CASE("lane memory is found first fit, and what it lacks is said in bytes") {
  Scene scene({.lane_bytes = 16 << 10});
  const std::uint64_t lane = pool::lane_bytes(pool::QueueKind::mpmc, 32, 64);
  std::vector<shmbw_queue_open_reply> queues;
  for (int i = 0;; ++i) {
    Packet& reply = queue_open(scene.writer, scene.id, "q" + std::to_string(i), {kMpmc, kWriter, 32});
    if (reply.status() != Status::ok) {
      CHECK(reply.error().shortage.slot == SHMBW_SLOT_LANE_BYTES);
      CHECK(reply.error().shortage.asked == lane);
      CHECK(reply.error().shortage.used == queues.size() * lane);
      break;
    }
    queues.push_back(opened(reply));
  }
  REQUIRE(queues.size() == (scene.view().control_area().size() - scene.view().header().lane_memory) / lane);
  const std::uint64_t gap = scene.view().lane(queues[2].lane).offset;
  queue_close(scene.writer, scene.id, queues[2], SHMBW_QUEUE_CLOSE_WRITER | SHMBW_QUEUE_CLOSE_REMOVE);
  lane_finished(scene.writer, scene.id, queues[2].lane, queues[2].lane_serial, kSender);
  // Too large for the gap.
  CHECK(queue_open(scene.writer, scene.id, "large", {kMpmc, kWriter, 64}).status() == Status::limit);
  const auto again = opened(queue_open(scene.writer, scene.id, "again", {kMpmc, kWriter, 32}));
  CHECK(scene.view().lane(again.lane).offset == gap);
}

TEST_CASE("lane memory that is prepared in parts is as if prepared at once, and what lies behind it is not touched") {
  constexpr std::uint32_t kCells = 16, kCellSize = 64;
  for (const auto kind : {pool::QueueKind::spsc, pool::QueueKind::mpmc, pool::QueueKind::broadcast}) {
    const std::uint64_t bytes = pool::lane_bytes(kind, kCells, kCellSize);
    struct alignas(64) Line {
      std::uint64_t words[8];
      bool operator==(const Line&) const = default;
    };
    REQUIRE(bytes % sizeof(Line) == 0);
    const std::vector<Line> used(bytes / sizeof(Line) + 16, Line{{7, 7, 7, 7, 7, 7, 7, 7}});
    auto whole = used;
    pool::prepare_lane(reinterpret_cast<std::byte*>(whole.data()), kind, kCells, kCellSize);
    CHECK(std::equal(whole.end() - 16, whole.end(), used.end() - 16));
    for (const std::uint32_t count : {1U, 5U, 7U, 16U, 17U}) {  // with some of them the last part has too many
      CAPTURE(count);
      auto parts = used;
      for (std::uint32_t from = 0; from < kCells; from += count)
        pool::prepare_cells(reinterpret_cast<std::byte*>(parts.data()), kind, kCells, kCellSize, from, count);
      CHECK(parts == whole);
    }
  }
}
