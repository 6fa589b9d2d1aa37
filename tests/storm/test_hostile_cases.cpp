// SPDX-License-Identifier: Apache-2.0
// Single attacks of a pool's participant on its fellows and on the broker, each alone and as hard as it goes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <random>
#include <thread>

#include "base/sys_futex.hpp"
#include "base/sys_process.hpp"
#include "client/queue/queue_set.hpp"
#include "client/session/connect.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/storm/crew.hpp"
#include "tests/storm/vandal.hpp"
#include "tests/support/pools.hpp"

using namespace shmb;
using namespace shmb::client;
using namespace storm;
using pool::CellWord;
using support::child_in;
using support::fellow;
using support::must;
using support::open;
using Kind = pool::QueueKind;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

std::shared_ptr<Pool> small_pool_on(const std::shared_ptr<Session>& session, const std::string& name = "p") {
  PoolSpec spec;
  spec.name = name;
  spec.classes = {{256, 16, 16}, {4096, 8, 8}};
  return must(Pool::create(session, spec, 0));
}
std::unique_ptr<Queue> end_of(const std::shared_ptr<Pool>& pool, const std::string& name, Kind kind, bool reads,
                              std::uint32_t flags = 0) {
  QueueSpec spec;
  spec.name = name;
  spec.kind = kind;
  spec.flags = flags;
  spec.reader = reads;
  spec.writer = !reads;
  spec.cells = 8;
  spec.cell_size = 128;
  return must(Queue::open(pool, spec));
}

// The lane that the participant writes, as it is, with nothing of the library in between.
struct RawLane {
  pool::LaneView words;
  std::uint64_t next = 0;

  static RawLane of(const std::shared_ptr<Pool>& writer) {
    const pool::View& view = writer->view();
    for (std::uint32_t i = 0; i < view.lanes(); ++i) {
      const pool::LaneEntry& entry = view.lane(i);
      const auto stamp = pool::Stamp::of(entry.stamp.load());
      if (stamp.state != static_cast<std::uint8_t>(pool::LaneState::open)) continue;
      if (entry.from != writer->me().index() || entry.from_life != writer->me().life()) continue;
      const auto kind = static_cast<Kind>(view.queue(entry.queue).kind);
      return {pool::LaneView(view.lane_memory(entry.offset), kind, entry.cells, entry.cell_size)};
    }
    FAIL("no lane");
    return {};
  }
  void publish(std::uint8_t tag, std::span<const std::byte> body) {
    pool::Cell& cell = words.cell(next);
    std::memcpy(cell.body(), body.data(), body.size());
    cell.word.store(CellWord::full(next, tag), std::memory_order_release);
    words.tail().store(++next);
  }
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

struct TinyList {
  ListHeader header;
  ListEntry entry;
};

}  // namespace

TEST_CASE("a hole punched into the control area is a broken pool at worst, for its participants and for the broker") {
  const harness::BrokerFixture broker;
  auto other = small_pool_on(open(broker), "other");
  for (const bool sender_dies : {false, true}) {
    auto pool = small_pool_on(open(broker), "punched");
    auto reader = fellow(broker, pool);
    std::vector<std::unique_ptr<Queue>> in, out;
    for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
      const std::string name = "q" + std::to_string(static_cast<int>(kind));
      in.push_back(end_of(reader, name, kind, true));
      out.push_back(end_of(pool, name, kind, false));
      Message message;
      (void)in.back()->receive(message, false, kNoWait);
      for (int n = 0; n < 3; ++n) {
        const Slot slot = must(pool->acquire(200, kNoWait));
        REQUIRE(out.back()->send(slot, kNoWait));
        REQUIRE(pool->release(slot));
      }
    }
    const std::span<std::byte> area = pool->view().control_area();
    REQUIRE(::madvise(area.data(), area.size(), MADV_REMOVE) == 0);
    for (auto& queue : in)
      for (int n = 0; n < 20; ++n) {
        Message message;
        if (queue->receive(message, n % 2 == 0, 2 * kMillisecond)) CHECK(stretch_fault(*reader, message) == "");
      }
    for (auto& queue : out)
      for (int n = 0; n < 20; ++n) {
        if (auto slot = pool->acquire(200, kNoWait)) {
          (void)queue->send(*slot, 2 * kMillisecond);
          (void)pool->release(*slot);
        }
        (void)queue->send(bytes_of(n), 2 * kMillisecond);
      }
    if (sender_dies) {
      // A third one, which dies with the hole in place: its repair reads nothing but zeros.
      harness::Child child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
        auto queue = end_of(joined, "q2", Kind::mpmc, false);
        for (int n = 0; n < 4; ++n) (void)queue->send(bytes_of(n), kNoWait);
        ::kill(::getpid(), SIGKILL);
        return 3;
      });
      CHECK((child.wait() == 128 + SIGKILL));
    }
    in.clear();
    out.clear();
  }
  // Elsewhere nothing happened.
  const Slot slot = must(other->acquire(100, kNoWait));
  CHECK(other->release(slot));
}

TEST_CASE("a futex word that changes without end delays no wait beyond its deadline") {
  const harness::BrokerFixture broker;
  auto pool = small_pool_on(open(broker));
  auto in = end_of(pool, "q", Kind::mpmc, true);
  harness::Child vandal = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) -> int {
    auto& word = joined->view().wait(0).event;
    for (std::uint64_t n = 0;; ++n) {
      word.fetch_add(1, std::memory_order_relaxed);
      if (n % 4096 == 0) (void)sys::futex_wake(word, INT_MAX);
    }
  });
  harness::Child victim = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    // A child of its own participant, so that a call that does not come back can be ended.
    // Every event word changes, whoever has which index.
    std::jthread more([&](const std::stop_token& stop) {
      while (!stop.stop_requested())
        for (std::size_t i = 0; i < pool::kParticipants; ++i) joined->view().wait(i).event.fetch_add(1);
    });
    auto queue = end_of(joined, "q", Kind::mpmc, true);
    auto lonely = end_of(joined, "nobody", Kind::spsc, false);
    Message message;
    QueueSet set;
    if (!set.add(*queue, nullptr)) return 3;
    for (int n = 0; n < 20; ++n) {
      auto got = queue->receive(message, false, 2 * kMillisecond);
      if (got || got.error().status != Status::deadline) return 4;
      auto sent = lonely->send(bytes_of(n), 2 * kMillisecond);
      if (sent || sent.error().status != Status::deadline) return 5;
      auto ready = set.wait(2 * kMillisecond);
      if (ready || ready.error().status != Status::deadline) return 6;
    }
    return 0;
  });
  CHECK(victim.wait() == 0);
  vandal.kill();
  CHECK((vandal.wait() == 128 + SIGKILL));
}

TEST_CASE("a doorbell that is filled, or shut down, blocks neither its owner nor those that ring it") {
  const harness::BrokerFixture broker;
  for (const bool shut : {false, true}) {
    CAPTURE(shut);
    auto pool = small_pool_on(open(broker), "a"), second = small_pool_on(open(broker), "b");
    auto writer = fellow(broker, pool);
    auto in = end_of(pool, "q", Kind::mpmc, true), also = end_of(second, "q", Kind::mpmc, true);
    auto out = end_of(writer, "q", Kind::mpmc, false);
    QueueSet set;  // of two pools: it waits by descriptor
    REQUIRE(set.add(*in, nullptr));
    REQUIRE(set.add(*also, nullptr));
    CHECK(set.wait(kMillisecond).error().status == Status::deadline);
    // As any participant may, the vandal asks for the doorbell.
    std::array<std::byte, 64> buffer;
    wire::Writer packet(buffer);
    shmbw_pool_doorbell request{};
    request.pool = writer->id();
    request.flags = SHMBW_DOORBELL_GET;
    request.participant = pool->me().index();
    request.life = pool->me().life();
    packet.begin(SHMBW_OP_POOL_DOORBELL, 0, Status::ok, request);
    const auto size = packet.finish(0).size();
    auto reply = writer->session()->call(std::span(buffer).first(size), Deadline::after(0));
    REQUIRE(reply);
    REQUIRE(reply->fds.size() == 1);
    const int bell = reply->fds[0].get();
    if (shut) {
      CHECK(::shutdown(bell, SHUT_RDWR) == 0);
    } else {
      const std::array<char, 2000> junk{};
      while (::send(bell, junk.data(), junk.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
      }
    }
    harness::Child victim = harness::Child::run([] { return 0; });  // nothing forked may disturb what follows
    CHECK(victim.wait() == 0);
    for (int n = 0; n < 20; ++n) {
      REQUIRE(out->send(bytes_of(n), kNoWait));
      bool arrived = false;
      for (int tries = 0; tries < 100 && !arrived; ++tries) {
        auto ready = set.wait(20 * kMillisecond);
        Message message;
        arrived = ready && ready->queue->receive(message, false, kNoWait);
      }
      CHECK(arrived);
      CHECK(set.wait(kMillisecond).error().status == Status::deadline);
    }
  }
}

TEST_CASE("malformed messages are refused, whatever their numbers, and reach beyond nothing") {
  const harness::BrokerFixture broker;
  constexpr std::uint64_t kNumbers[] = {0,          1,
                                        56,         4096,
                                        4097,       UINT32_MAX,
                                        INT64_MAX,  UINT64_MAX,
                                        1ULL << 32, UINT64_MAX - 15,
                                        1ULL << 59, UINT64_MAX - 4096};
  std::mt19937_64 dice(20261121);
  auto number = [&] { return kNumbers[dice() % std::size(kNumbers)]; };
  int delivered = 0, refused = 0;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    for (int trial = 0; trial < 60; ++trial) {
      // One of its own: when the vandal leaves, the broker may find it broken.
      auto pool = small_pool_on(open(broker));
      auto honest = fellow(broker, pool);
      const std::string name = "q";
      auto in = end_of(pool, name, kind, true);
      auto vandal = fellow(broker, pool);
      auto out = end_of(vandal, name, kind, false);
      Message message;
      (void)in->receive(message, false, kNoWait);  // joins a ring
      RawLane lane = RawLane::of(vandal);
      static constexpr std::uint8_t kTags[] = {0, 56, 120, 121, 0xfb, 0xfc, 0xfc, 0xfd, 0xfe, 0xfe, 0xff, 0xff};
      for (int n = 0; n < 4; ++n) {
        const std::uint8_t tag = kTags[dice() % std::size(kTags)];
        std::array<std::byte, 120> body{};
        pool::Handle handle{};
        handle.slot = static_cast<std::uint32_t>(dice() % 3 == 0 ? number() : dice() % 25);
        handle.generation = static_cast<std::uint32_t>(dice() % 3);
        handle.region = number();
        handle.offset = dice() % 2 == 0 ? 0 : number();
        handle.length = number();
        handle.parts = number();
        std::memcpy(body.data(), &handle, sizeof handle);
        TinyList list{};
        list.header = {static_cast<std::uint32_t>(dice() % 2 == 0 ? dice() % 4 : number()),
                       static_cast<std::uint32_t>(number()), 0};
        list.entry.kind_rights = static_cast<std::uint32_t>(dice() % 5) | static_cast<std::uint32_t>(dice() % 20) << 8;
        list.entry.number = static_cast<std::uint32_t>(number());
        list.entry.id = number();
        list.entry.offset = number();
        list.entry.length = number();
        if (tag == pool::kTagListInline) std::memcpy(body.data(), &list, sizeof list);
        if (handle.slot < 24)  // and where a list is looked for, there is one
          if (std::byte* bytes = vandal->data(handle.slot)) std::memcpy(bytes, &list, sizeof list);
        lane.publish(tag, body);
      }
      for (int n = 0; n < 8; ++n) {
        auto got = in->receive(message, n % 2 == 0, kNoWait);
        if (!got) {
          refused += got.error().status == Status::empty ? 0 : 1;
          continue;
        }
        ++delivered;
        const std::string fault = stretch_fault(*pool, message);
        CHECK(fault == "");
      }
      (void)message.done();
      // The honest go on in the same queue, beside what the vandal left there, or after it.
      if (kind != Kind::mpmc) out.reset();
      auto good = end_of(honest, name, kind, false);
      (void)in->receive(message, false, kNoWait);
      REQUIRE(good->send(bytes_of(trial), 100 * kMillisecond));
      bool arrived = false;
      for (int n = 0; n < 60 && !arrived; ++n)
        arrived = in->receive(message, false, kMillisecond) && message.count() == 1 &&
                  message.part(0).length == sizeof trial &&
                  std::memcmp(message.part(0).data, &trial, sizeof trial) == 0;
      CHECK(arrived);
      (void)message.done();
    }
  }
  CHECK(delivered > 0);
  CHECK(refused > 0);
}

TEST_CASE("a region that the lane does not hold is an error of that part, or of that lane, and of nothing else") {
  const harness::BrokerFixture broker;
  auto pool = small_pool_on(open(broker));
  auto vandal = fellow(broker, pool);
  auto in = end_of(pool, "q", Kind::mpmc, true);
  auto out = end_of(vandal, "q", Kind::mpmc, false);
  RawLane lane = RawLane::of(vandal);
  for (const std::uint32_t rights : {0U, 1U, 2U, 8U, 255U}) {
    TinyList list{};
    list.header = {1, 0, 7};
    list.entry.kind_rights = static_cast<std::uint32_t>(PartKind::region) | rights << 8;
    list.entry.number = 1;
    list.entry.id = 424242;
    list.entry.length = 10;
    lane.publish(pool::kTagListInline, bytes_of(list));
    Message message;
    REQUIRE(in->receive(message, false, kNoWait));
    CHECK(message.count() == 1);
    CHECK(message.part(0).status != Status::ok);
    CHECK(message.part(0).data == nullptr);
  }
  pool::Handle handle{};
  handle.slot = pool::kNone;
  handle.generation = 1;
  handle.region = 424242;
  handle.length = 64;
  handle.parts = 1;
  lane.publish(pool::kTagListInRegion, bytes_of(handle));
  Message message;
  auto got = in->receive(message, false, kNoWait);
  REQUIRE(!got);
  CHECK(got.error().status == Status::broken);
  // Others are heard.
  auto honest = fellow(broker, pool);
  auto good = end_of(honest, "q", Kind::mpmc, false);
  REQUIRE(good->send(bytes_of(handle), kNoWait));
  CHECK(in->receive(message, false, kNoWait));
}

TEST_CASE("a list in a region that is closed for writing arrives, and later messages of its lane do too") {
  const harness::BrokerFixture broker;
  auto pool = small_pool_on(open(broker));
  auto vandal = fellow(broker, pool);
  auto in = end_of(pool, "q", Kind::mpmc, true);
  auto out = end_of(vandal, "q", Kind::mpmc, false);
  CreateItem item;
  item.length = 4096;
  item.group = pool->group();
  auto region = must(create_region(vandal->session(), item));
  const ListHeader header{1, 0, 7};
  std::memcpy(region->data(), &header, sizeof header);
  ListEntry entry{};
  entry.kind_rights = static_cast<std::uint32_t>(PartKind::bytes);
  entry.offset = 100;
  entry.length = 5;
  std::memcpy(region->data() + sizeof header, &entry, sizeof entry);
  std::memcpy(region->data() + 100, "hello", 5);
  REQUIRE(region->publish(Deadline::after(0)));
  pool::Handle handle{};
  handle.slot = pool::kNone;
  handle.region = region->ref().id;
  handle.generation = region->ref().generation;
  handle.length = 4096;
  handle.parts = 1;
  RawLane::of(vandal).publish(pool::kTagListInRegion, bytes_of(handle));
  Message message;
  REQUIRE(in->receive(message, false, kNoWait));
  CHECK(message.type() == 7);
  REQUIRE(message.count() == 1);
  CHECK(std::memcmp(message.part(0).data, "hello", 5) == 0);
  REQUIRE(message.done());
  auto honest = fellow(broker, pool);
  auto good = end_of(honest, "q", Kind::mpmc, false);
  REQUIRE(good->send(bytes_of(handle), kNoWait));
  CHECK(in->receive(message, false, kNoWait));
}

TEST_CASE("a list that changes while it is read is read once, and reaches beyond nothing") {
  const harness::BrokerFixture broker;
  auto pool = small_pool_on(open(broker));
  auto vandal = fellow(broker, pool);
  auto in = end_of(pool, "q", Kind::mpmc, true);
  auto out = end_of(vandal, "q", Kind::mpmc, false);
  const Slot slot = must(vandal->acquire(4096, kNoWait));
  // Two faces of the same list: one that is right, one that names what is not there.
  constexpr std::uint32_t kParts = 100;
  std::vector<std::byte> right(4096), wrong(4096);
  for (auto* face : {&right, &wrong}) {
    const bool good = face == &right;
    const ListHeader header{good ? kParts : 127, good ? 0 : UINT32_MAX, 0};
    std::memcpy(face->data(), &header, sizeof header);
    for (std::uint32_t i = 0; i < kParts; ++i) {
      ListEntry entry{};
      entry.kind_rights = static_cast<std::uint32_t>(good || i % 2 == 0 ? PartKind::bytes : PartKind::slot);
      entry.number = good ? 0 : 1'000'000;
      entry.id = good ? 0 : UINT64_MAX;
      entry.offset = good ? 3300 : UINT64_MAX - 100;
      entry.length = good ? 64 : UINT64_MAX / 2;
      std::memcpy(face->data() + sizeof header + i * sizeof entry, &entry, sizeof entry);
    }
  }
  std::jthread flipper([&](const std::stop_token& stop) {
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(slot.data);
    for (std::uint64_t n = 0; !stop.stop_requested(); ++n) {
      const auto& face = n % 2 == 0 ? right : wrong;
      for (std::size_t i = 0; i < (16 + kParts * 32) / 8; ++i) {
        std::uint64_t word;
        std::memcpy(&word, face.data() + i * 8, sizeof word);
        words[i].store(word, std::memory_order_relaxed);
      }
      std::this_thread::yield();  // where this loses its processor, a face is mostly whole
    }
  });
  int delivered = 0, refused = 0;
  const std::int64_t patience = sys::now_monotonic() + 60'000'000'000;
  for (int n = 0; n < 2000 || ((delivered == 0 || refused == 0) && sys::now_monotonic() < patience); ++n) {
    // Published by hand: the library would write the list again.
    pool::Handle handle{};
    handle.slot = slot.index;
    handle.generation = slot.generation;
    handle.length = 4096;
    handle.parts = kParts;
    RawLane lane = RawLane::of(vandal);
    lane.next = lane.words.tail().load();
    lane.publish(pool::kTagListInSlot, bytes_of(handle));
    Message message;
    auto got = in->receive(message, n % 2 == 0, kNoWait);
    if (got) {
      ++delivered;
      const std::string fault = stretch_fault(*pool, message);
      CHECK(fault == "");
      (void)message.done();
      continue;
    }
    CHECK(got.error().status == Status::broken);
    ++refused;
    out.reset();  // a new lane
    out = end_of(vandal, "q", Kind::mpmc, false);
  }
  flipper.request_stop();
  flipper.join();
  CHECK(delivered > 0);
  CHECK(refused > 0);
  (void)vandal->release(slot);
}
