// SPDX-License-Identifier: Apache-2.0
// Messages with slots that the receiver cannot map at that moment: what else is in them arrives, with the reason, and
// nothing stays held.
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <vector>

#include "client/face/shmbroker_pool.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

// No descriptor can be made while one of these lives. 0 would refuse poll(2) as well.
struct NoDescriptors {
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &old);
    const rlimit tight{1, old.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &tight);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old); }
  rlimit old{};
};
// How long a stopped broker is waited for; one that runs answers in it, also on a busy machine.
constexpr std::int64_t kAnswer = 2'000'000'000;

// A writer and a reader of one pool, in one process, and two slots of which the reader has mapped the first.
struct Unmapped {
  explicit Unmapped(Kind kind, std::int64_t timeout = 0) {
    QueueSpec spec = queue_spec("q", kind, true, false);
    spec.cell_size = 128;
    spec.timeout = timeout;
    in = must(Queue::open(joined, spec));
    spec.reader = false;
    spec.writer = true;
    out = must(Queue::open(pool, spec));
    slots = {must(pool->acquire(300, kNoWait)), must(pool->acquire(300, kNoWait))};
    for (std::size_t i = 0; i < slots.size(); ++i) std::memset(slots[i].data, 'a' + static_cast<int>(i), 300);
  }
  void send(Region* region = nullptr) {
    std::vector<OutPart> parts{bytes_part("head"), slot_part(slots[0]), slot_part(slots[1])};
    if (region != nullptr) parts = {slot_part(slots[1]), region_part(*region), bytes_part("tail")};
    must(out->send(parts, 7, 0, kForever));
  }
  // Once the messages are done, and the writer lets its own references go, it can have both slots again.
  bool all_free() {
    for (const Slot& slot : slots) (void)pool->release(slot);
    return pool->acquire(300, kNoWait) && pool->acquire(300, kNoWait);
  }
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool = must(make_pool(session, slots_of("p", 512, 1, 2)));
  std::shared_ptr<Session> other = beside(broker, pool);
  std::shared_ptr<Pool> joined = must(try_pool(other, "p"));
  std::unique_ptr<Queue> in, out;
  std::array<Slot, 2> slots;
};

void check_parts(const Message& message, Status why) {
  REQUIRE(message.count() == 3);
  CHECK(message.type() == 7);
  CHECK(text_of(message, 0) == "head");
  CHECK(text_of(message, 1) == std::string(300, 'a'));
  const Message::Part& part = message.part(2);
  CHECK(part.kind == PartKind::slot);
  CHECK(part.status == why);
  CHECK(part.data == nullptr);
  CHECK_FALSE(part.failure.sentence.empty());
}

}  // namespace

TEST_CASE("a slot that cannot be mapped at that moment arrives with the reason, and the other parts arrive") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    for (const bool keep : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(keep);
      Unmapped pair(kind);
      for (int i = 0; i < 2; ++i) pair.send();
      Message message;
      {
        const NoDescriptors none;
        must(pair.in->receive(message, keep, kNoWait));
      }
      check_parts(message, Status::no_descriptors);
      const Slot taken = must(message.take_slot(1));
      const auto refused = message.take_slot(2);
      CHECK(status_of(refused) == Status::no_descriptors);
      CHECK(refused.error().sentence.find("ulimit") != std::string::npos);
      must(pair.joined->release(taken));
      must(message.done());
      // With descriptors again the same slot is there.
      must(pair.in->receive(message, keep, kNoWait));
      REQUIRE(message.part(2).status == Status::ok);
      CHECK(message.part(2).data[299] == std::byte{'b'});
      must(message.done());
      CHECK(pair.all_free());
    }
  }
}

TEST_CASE("if the broker does not answer, a list is waited for once, and arrives with the reason") {
  Unmapped pair(Kind::mpmc, kAnswer);
  CreateItem item;
  item.length = 4096;
  item.group = pair.pool->group();
  auto region = must(create_region(pair.session, item));
  for (int i = 0; i < 2; ++i) pair.send(region.get());
  Message message;
  {
    const harness::Stopped stopped(pair.broker.pid());
    must(pair.in->receive(message, true, kNoWait));
    CHECK(message.part(0).status == Status::deadline);
    CHECK(status_of(message.take_slot(0)) == Status::deadline);
    CHECK(message.part(1).status == Status::deadline);
    CHECK(message.part(1).failure.sentence == message.part(0).failure.sentence);
    CHECK(text_of(message, 2) == "tail");
    must(message.done());
  }
  must(pair.in->receive(message, false, kNoWait));
  CHECK(message.part(0).status == Status::ok);
  CHECK(message.part(1).status == Status::ok);
  must(message.done());
  CHECK(pair.all_free());
}

TEST_CASE("a message that is one slot, or whose list lies in one, is not taken while that cannot be mapped") {
  for (const bool list : {false, true}) {
    CAPTURE(list);
    Unmapped pair(Kind::spsc, kAnswer);
    must(pair.pool->release(pair.slots[1]));  // the list's own
    const std::string large(200, 'l');
    const OutPart parts[] = {bytes_part(large), bytes_part("tail")};
    if (list) must(pair.out->send(parts, 7, 0, kForever));
    else must(pair.out->send(bytes_of(large), kForever));
    Message message;
    {
      const NoDescriptors none;
      CHECK(status_of(pair.in->receive(message, false, kNoWait)) == Status::no_descriptors);
      CHECK(pair.in->receive_now(message, false, kNoWait) == Now::ask);
    }
    {
      const harness::Stopped stopped(pair.broker.pid());
      CHECK(status_of(pair.in->receive(message, false, kNoWait)) == Status::deadline);
    }
    must(pair.in->receive(message, false, kNoWait));
    CHECK(text_of(message, 0) == large);
    must(message.done());
    CHECK(pair.all_free());
  }
}

TEST_CASE("in the C and C++ faces a part that could not be mapped has no address and no bytes") {
  const harness::BrokerFixture broker;
  shmbroker::ConnectOptions connect;
  connect.socket = broker.socket();
  connect.join_group = false;
  auto session = shmbroker::Session::connect(connect), other = shmbroker::Session::connect(connect);
  shmbroker::PoolOptions make;
  make.name = "p";
  make.classes = {{512, 1, 2}};
  auto pool = shmbroker::Pool::create(session, make);
  auto joined = shmbroker::Pool::open(other, "#" + std::to_string(pool.info().group) + "/p");
  shmbroker::QueueOptions options;
  options.kind = shmbroker::QueueKind::spsc;
  options.inline_bytes = 120;
  auto out = pool.open_queue("q", shmbroker::Role::writer, options);
  auto in = joined.open_queue("q", shmbroker::Role::reader, options);
  auto first = pool.acquire(300), second = pool.acquire(300);
  out.send_parts({shmbroker::Part(second), shmbroker::Part("tail")});
  shmbroker::Message message;
  {
    const NoDescriptors none;
    in.receive(message);
  }
  CHECK(message.bytes().empty());
  CHECK(message.text().empty());
  const auto part = message.part(0);
  CHECK(part.kind == shmbroker::ReceivedPart::Kind::slot);
  CHECK(part.status == shmbroker::Status::no_descriptors);
  CHECK(part.bytes.data() == nullptr);
  CHECK(part.bytes.empty());
  shmb_part raw{};
  shmb_error error{};
  REQUIRE(shmb_message_part(message.c(), 0, &raw, &error) == SHMB_OK);
  CHECK(raw.status == SHMB_E_NO_DESCRIPTORS);
  CHECK(raw.data == nullptr);
  CHECK(raw.slot.data == nullptr);
  CHECK(joined.try_take_slot(message).error().status() == shmbroker::Status::no_descriptors);
  CHECK(message.part(1).bytes.size() == 4);
  message.done();
}
