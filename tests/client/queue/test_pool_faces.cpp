// SPDX-License-Identifier: Apache-2.0
// Pools and queues as a program sees them: the C face, and the C++ face over it.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "client/face/shmbroker_pool.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/face.hpp"

TEST_CASE("a pool, a queue and a message in C") {
  const harness::BrokerFixture broker;
  shmb_error error{};
  shmb_session* session = nullptr;
  shmb_connect_options connect{};
  connect.size = sizeof connect;
  connect.socket = broker.socket().c_str();
  connect.flags = SHMB_CONNECT_NO_GROUP;
  REQUIRE(shmb_connect(&connect, &session, &error) == SHMB_OK);

  const shmb_size_class classes[] = {{4096, 2, 4}, {64, 2, 0}};
  shmb_pool_options make{};
  make.size = sizeof make;
  make.name = "p";
  make.classes = classes;
  make.class_count = 2;
  shmb_pool* pool = nullptr;
  REQUIRE(shmb_pool_create(session, &make, &pool, &error) == SHMB_OK);
  shmb_pool* same = nullptr;
  CHECK(shmb_pool_open(session, "p", nullptr, &same, &error) == SHMB_OK);
  shmb_pool_close(same);
  shmb_pool_info info{};
  info.size = sizeof info;
  CHECK(shmb_pool_get_info(pool, &info, &error) == SHMB_OK);
  CHECK(info.slots == 4);
  CHECK(info.slots_limit == 6);
  CHECK(info.class_count == 2);
  CHECK(info.classes[0].slot_size == 64);
  CHECK(shmb_pool_remove(pool, &error) == SHMB_OK);
  CHECK(shmb_pool_open(session, "p", nullptr, &same, &error) == SHMB_E_NOT_FOUND);
  CHECK(shmb_pool_remove(nullptr, &error) == SHMB_E_INVALID);

  shmb_queue_options open{};
  open.size = sizeof open;
  open.kind = SHMB_QUEUE_MPMC;
  open.role = SHMB_QUEUE_READER | SHMB_QUEUE_WRITER;
  open.cells = 3;
  shmb_queue* queue = nullptr;
  CHECK(shmb_queue_open(pool, "q", &open, &queue, &error) == SHMB_E_INVALID);
  CHECK(std::string(error.sentence).find("power of two") != std::string::npos);
  open.cells = 0;
  open.inline_bytes = 57;
  CHECK(shmb_queue_open(pool, "q", &open, &queue, &error) == SHMB_E_INVALID);
  open.inline_bytes = 0;
  REQUIRE(shmb_queue_open(pool, "q", &open, &queue, &error) == SHMB_OK);

  shmb_slot slot{};
  REQUIRE(shmb_slot_acquire(pool, 100, SHMB_NO_WAIT, &slot, &error) == SHMB_OK);
  std::memcpy(slot.data, "frame", 5);
  CHECK(shmb_queue_send(queue, "bytes", 5, SHMB_NO_WAIT, &error) == SHMB_OK);
  CHECK(shmb_queue_send_slot(queue, &slot, SHMB_NO_WAIT, &error) == SHMB_OK);
  shmb_part parts[2] = {};
  parts[0].kind = SHMB_PART_BYTES;
  parts[0].data = "head";
  parts[0].length = 4;
  parts[1].kind = SHMB_PART_SLOT;
  parts[1].slot = slot;
  parts[1].rights = SHMB_RIGHT_SHARE;
  const shmb_outgoing refused{&parts[1], 1, 0, 0};
  CHECK(shmb_queue_send_message(queue, &refused, SHMB_NO_WAIT, &error) == SHMB_E_INVALID);
  const shmb_outgoing endless{parts, SIZE_MAX, 0, 0};
  CHECK(shmb_queue_send_message(queue, &endless, SHMB_NO_WAIT, &error) == SHMB_E_INVALID);
  CHECK(std::string(error.sentence).find("at most 65536 parts") != std::string::npos);
  parts[1].rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;  // the receiver may write to it
  const shmb_outgoing out[] = {{parts, 2, 9, 0}, {parts, 1, 0, 0}};
  std::size_t sent = 7;
  CHECK(shmb_queue_send_many(queue, out, 2, SHMB_NO_WAIT, &sent, &error) == SHMB_OK);
  CHECK(sent == 2);
  CHECK(shmb_queue_drain(queue, SHMB_NO_WAIT, &error) == SHMB_E_FULL);
  CHECK(shmb_slot_release(pool, &slot, &error) == SHMB_OK);
  CHECK(shmb_slot_release(pool, &slot, &error) == SHMB_E_STALE);

  shmb_message* messages[4] = {};
  for (auto& message : messages) REQUIRE(shmb_message_new(&message, &error) == SHMB_OK);
  CHECK(shmb_queue_receive(queue, messages[0], 0, SHMB_DEFAULT_TIMEOUT, &error) == SHMB_OK);
  CHECK(shmb_message_count(messages[0]) == 1);
  CHECK(std::memcmp(shmb_message_data(messages[0]), "bytes", shmb_message_length(messages[0])) == 0);
  CHECK(shmb_message_done(messages[0], &error) == SHMB_OK);
  std::size_t count = 0;
  CHECK(shmb_queue_receive_many(queue, messages, 4, SHMB_NO_WAIT, &count, &error) == SHMB_OK);
  CHECK(count == 3);
  CHECK(shmb_message_type(messages[1]) == 9);
  shmb_part part{};
  CHECK(shmb_message_part(messages[1], 1, &part, &error) == SHMB_OK);
  CHECK(part.kind == SHMB_PART_SLOT);
  CHECK(part.rights == (SHMB_RIGHT_READ | SHMB_RIGHT_WRITE));
  CHECK(std::memcmp(part.data, "frame", 5) == 0);
  CHECK(shmb_message_part(messages[1], 2, &part, &error) == SHMB_E_INVALID);
  shmb_slot taken{};
  CHECK(shmb_message_take_slot(messages[1], 1, &taken, &error) == SHMB_OK);
  CHECK(shmb_slot_release(pool, &taken, &error) == SHMB_OK);
  for (auto& message : messages) shmb_message_free(message);
  CHECK(shmb_queue_drain(queue, SHMB_NO_WAIT, &error) == SHMB_OK);

  shmb_queue_set* set = nullptr;
  REQUIRE(shmb_queue_set_new(&set, &error) == SHMB_OK);
  CHECK(shmb_queue_set_add(set, queue, &info, &error) == SHMB_OK);
  shmb_queue* ready = nullptr;
  void* tag = nullptr;
  CHECK(shmb_queue_set_wait(set, SHMB_NO_WAIT, &ready, &tag, &error) == SHMB_E_EMPTY);
  CHECK(shmb_queue_send(queue, "x", 1, SHMB_NO_WAIT, &error) == SHMB_OK);
  CHECK(shmb_queue_set_wait(set, SHMB_FOREVER, &ready, &tag, &error) == SHMB_OK);
  CHECK(ready == queue);
  CHECK(tag == &info);
  CHECK(shmb_queue_set_remove(set, queue, &error) == SHMB_OK);
  shmb_queue_set_free(set);
  shmb_queue_info facts{};
  facts.size = sizeof facts;
  CHECK(shmb_queue_get_info(queue, &facts, &error) == SHMB_OK);
  CHECK(facts.kind == SHMB_QUEUE_MPMC);
  CHECK(facts.cells == 256);
  CHECK(facts.inline_bytes == 56);
  CHECK(facts.sent == 5);
  CHECK(facts.received == 4);
  CHECK(std::string(facts.name) == "q");
  CHECK(shmb_queue_close(queue, SHMB_QUEUE_CLOSE_ALL | SHMB_QUEUE_CLOSE_REMOVE, &error) == SHMB_OK);
  shmb_pool_close(pool);
  shmb_disconnect(session);
}

TEST_CASE("missing arguments of pools and queues are refused, never followed") {
  shmb_error error{};
  CHECK(shmb_pool_create(nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_pool_open(nullptr, nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_pool_get_info(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_slot_acquire(nullptr, 1, 0, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_slot_retain(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_slot_release(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_open(nullptr, nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_open_alone(nullptr, nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_send(nullptr, nullptr, 1, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_send_slot(nullptr, nullptr, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_send_message(nullptr, nullptr, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_send_many(nullptr, nullptr, 1, 0, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_receive(nullptr, nullptr, 0, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_receive_many(nullptr, nullptr, 1, 0, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_shutdown(nullptr, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_drain(nullptr, 0, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_get_info(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_descriptor(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_set_new(nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_set_add(nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_set_remove(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_set_wait(nullptr, 0, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_queue_set_descriptor(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_new(nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_done(nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_keep(nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_give_back(nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_part(nullptr, 0, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_message_count(nullptr) == 0);
  CHECK(shmb_message_data(nullptr) == nullptr);
  CHECK(shmb_queue_close(nullptr, 0, &error) == SHMB_OK);
  shmb_pool_close(nullptr);
  shmb_message_free(nullptr);
  shmb_queue_set_free(nullptr);
}

TEST_CASE("a pool, its slots and its queues in C++") {
  const harness::BrokerFixture broker;
  shmbroker::ConnectOptions connect;
  connect.socket = broker.socket();
  connect.join_group = false;
  auto session = shmbroker::Session::connect(connect);
  shmbroker::PoolOptions make;
  make.name = "p";
  make.classes = {{4096, 2, 4}};
  auto pool = shmbroker::Pool::create(session, make);
  shmbroker::QueueOptions options;
  options.kind = shmbroker::QueueKind::mpmc;
  auto queue = pool.open_queue("q", shmbroker::Role::both, options);
  shmbroker::Message message;
  {
    auto slot = pool.acquire(16);
    slot.as_span<std::uint64_t>()[1] = 42;
    queue.send(slot);
  }
  queue.receive(message);
  CHECK(message.as_span<std::uint64_t>()[1] == 42);
  {
    // Another pool cannot have it, and it stays in the message.
    shmbroker::PoolOptions elsewhere;
    elsewhere.name = "o";
    const auto other = shmbroker::Pool::create(session, elsewhere);
    const auto refused = other.try_take_slot(message);
    CHECK(refused.error().status() == shmbroker::Status::invalid);
    CHECK(std::string_view(refused.error().what()).find("another pool") != std::string_view::npos);
    auto own = pool.take_slot(message);
    message.done();
    CHECK(own.as_span<std::uint64_t>()[1] == 42);
    queue.send_parts({shmbroker::Part("head"), shmbroker::Part(own)});
  }
  queue.receive_kept(message);
  CHECK(message.count() == 2);
  CHECK(message.text() == "head");
  CHECK(message.part(1).bytes.size() == 16);
  message.done();
  CHECK(queue.try_receive(message, shmbroker::Timeout::no_wait()).error().status() == shmbroker::Status::empty);

  const shmbroker::SizeClassPool any(session, shmbroker::Pool::open(session, "p"));
  auto small = any.acquire(10), large = any.acquire(100'000);
  CHECK_FALSE(small.is_region());
  CHECK(large.is_region());
  large.bytes()[99'999] = std::byte{1};
  const std::array many = {small.part(), large.part(), shmbroker::Part("bytes")};
  CHECK(queue.send_many(many) == 3);
  queue.shutdown();
  std::vector<std::size_t> sizes;
  queue.for_each([&](shmbroker::Message& each) { sizes.push_back(each.bytes().size()); });
  CHECK(sizes == std::vector<std::size_t>{10, 100'000, 5});
}

namespace {

// A queue of eight numbers, closed.
shmbroker::Queue numbers_in(const shmbroker::Pool& pool, std::string_view name) {
  auto queue = pool.open_queue(name, shmbroker::Role::both);
  for (int i = 0; i < 8; ++i) queue.send(std::as_bytes(std::span(&i, 1)));
  queue.shutdown();
  return queue;
}

}  // namespace

TEST_CASE("messages are received by value, and each is its owner's until it goes") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto pool = shmbroker::Pool::create(session, {.name = std::string_view("p"), .classes = {{4096, 4, 4}}});
  auto queue = numbers_in(pool, std::string_view("numbers/rest").substr(0, 7));
  std::vector<shmbroker::Message> all;
  for (int i = 0; i < 8; ++i) all.push_back(queue.receive());
  for (int i = 0; i < 8; ++i) CHECK(all[static_cast<std::size_t>(i)].as<int>() == i);
  const auto over = queue.try_receive();
  REQUIRE_FALSE(over);
  CHECK(over.error().status() == shmbroker::Status::closed);
  // As another type it is refused, with both sizes.
  const auto wrong = all[0].try_as<std::uint64_t>();
  REQUIRE_FALSE(wrong);
  CHECK(std::string(wrong.error().what()) == "the message has 4 bytes; the type asked for has 8");
  // A slot is taken as what lies in it.
  auto slot = pool.acquire(sizeof(std::uint64_t));
  slot.as<std::uint64_t>() = 99;
  CHECK(slot.as_span<std::uint64_t>()[0] == 99);
  slot.resize(7);
  CHECK_FALSE(slot.try_as<std::uint64_t>());
}

TEST_CASE("a message of an at-least-once queue that an exception destroys goes to another reader") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto pool = shmbroker::Pool::create(session, {.name = "p", .classes = {{4096, 4, 4}}});
  const shmbroker::QueueOptions options{.kind = shmbroker::QueueKind::mpmc, .at_least_once = true};
  auto tasks = pool.open_queue("tasks", shmbroker::Role::both, options);
  tasks.send("the task");
  struct Failure {};
  const auto is_there = [&] {
    shmbroker::Message again;
    if (!tasks.try_receive(again, shmbroker::Timeout::no_wait())) return false;
    const bool same = again.text() == "the task";
    again.give_back();
    return same;
  };
  const auto give_up = [&](auto&&...) { throw Failure(); };

  SUBCASE("in for_each") {
    CHECK_THROWS_AS(tasks.for_each([&](shmbroker::Message&) { throw Failure(); }), Failure);
  }
  SUBCASE("in a range") {
    CHECK_THROWS_AS(
        [&] {
          for (auto&& task : tasks.messages()) give_up(task);
        }(),
        Failure);
  }
  SUBCASE("received by value, and moved") {
    CHECK_THROWS_AS(
        [&] {
          std::vector<shmbroker::Message> held;
          held.push_back(tasks.receive());
          give_up();
        }(),
        Failure);
  }
  SUBCASE("in a message that was made before, and assigned to") {
    CHECK_THROWS_AS(
        [&] {
          shmbroker::Message task;
          task = tasks.receive();
          give_up();
        }(),
        Failure);
  }
  CHECK(is_there());

  // Another exception, which was on its way before the message came, does not say that the work failed.
  struct WorksWhileUnwinding {
    shmbroker::Queue& queue;
    ~WorksWhileUnwinding() { (void)queue.try_receive(); }
  };
  CHECK_THROWS_AS(
      [&] {
        const WorksWhileUnwinding worker{tasks};
        give_up();
      }(),
      Failure);
  CHECK_FALSE(is_there());
}

TEST_CASE("a message that is done, or of another queue, does not come again for an exception") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto pool = shmbroker::Pool::create(session, {.name = "p", .classes = {{4096, 4, 4}}});
  bool at_least_once = false;
  SUBCASE("done first, at least once") { at_least_once = true; }
  SUBCASE("not done, at most once") {}
  const shmbroker::QueueOptions options{.kind = shmbroker::QueueKind::mpmc, .at_least_once = at_least_once};
  auto queue = pool.open_queue("q", shmbroker::Role::both, options);
  queue.send(pool.acquire(100));
  struct Failure {};
  const auto fail = [&] {
    auto message = queue.receive();
    if (at_least_once) message.done();
    throw Failure();
  };
  CHECK_THROWS_AS(fail(), Failure);
  CHECK(queue.try_receive(shmbroker::Timeout::no_wait()).error().status() == shmbroker::Status::empty);
  // Its slot is free again: all four can be had.
  std::vector<shmbroker::Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(pool.acquire(100));
}

TEST_CASE("a queue is a range of its messages, which ends when it is closed and drained") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto pool = shmbroker::Pool::create(session, {.name = "p", .classes = {{4096, 4, 4}}});
  {
    auto queue = numbers_in(pool, "moved");
    std::vector<shmbroker::Message> all;
    for (auto message : queue.messages()) all.push_back(std::move(message));
    REQUIRE(all.size() == 8);
    for (int i = 0; i < 8; ++i) CHECK(all[static_cast<std::size_t>(i)].as<int>() == i);
    for (auto message : queue.messages()) FAIL(message.count());
  }
  {
    auto queue = numbers_in(pool, "in-place");
    int next = 0;
    for (const auto& message : queue.messages()) CHECK(message.as<int>() == next++);
    CHECK(next == 8);
  }
  {
    auto queue = numbers_in(pool, "left-early");
    for (auto&& message : queue.messages())
      if (message.as<int>() == 3) break;
    CHECK(queue.receive().as<int>() == 4);
  }
  {
    auto queue = pool.open_queue("open", shmbroker::Role::both);
    queue.send("one");
    int seen = 0;
    auto range = queue.try_messages(std::chrono::milliseconds(1));
    for (const auto& message : range) seen += message.text() == "one" ? 1 : 100;
    CHECK(seen == 1);
    REQUIRE_FALSE(range.outcome());
    CHECK(range.outcome().error().status() == shmbroker::Status::deadline);
    CHECK_THROWS_AS(
        [&] {
          for (auto&& message : queue.messages(std::chrono::milliseconds(1))) (void)message;
        }(),
        shmbroker::Error);
  }
}

namespace {

shmbroker::PoolOptions pool_named(const std::string& name) {
  shmbroker::PoolOptions options;
  options.name = name;
  options.classes = {{4096, 4}, {64, 4}};
  return options;
}

}  // namespace

TEST_CASE("a pool takes the name of another one over, whose participants go on with it") {
  const harness::BrokerFixture broker;
  const auto session = support::connect(broker.socket());
  auto options = pool_named("p");
  const auto old = shmbroker::Pool::create(session, options);
  CHECK(shmbroker::Pool::try_create(session, options).error().status() == shmbroker::Status::exists);
  options.replace = true;
  const auto next = shmbroker::Pool::create(session, options);
  CHECK(next.info().id != old.info().id);
  CHECK(shmbroker::Pool::open(session, std::string("p")).info().id == next.info().id);
  CHECK(old.acquire(100).bytes().size() >= 100);
  old.try_remove().value();  // it has no name left to lose
  CHECK(shmbroker::Pool::open(session, std::string("p")).info().id == next.info().id);
  options.name = "fresh";  // replacing nothing is making
  const auto fresh = shmbroker::Pool::create(session, options);
  options.name.clear();
  CHECK(shmbroker::Pool::try_create(session, options).error().status() == shmbroker::Status::invalid);
}

TEST_CASE("a pool is opened as the options say, by its name and by its number") {
  const harness::BrokerFixture broker;
  const auto session = support::connect(broker.socket()), by_name = support::connect(broker.socket()),
             by_number = support::connect(broker.socket());
  const auto made = shmbroker::Pool::create(session, pool_named("p"));
  const std::string name = "#" + std::to_string(made.info().group) + "/p";
  for (const auto& opened : {shmbroker::Pool::open(by_name, name, {.read_only = true}),
                             shmbroker::Pool::open(by_number, made.info().id, {.read_only = true})}) {
    CHECK(opened.info().id == made.info().id);
    CHECK(opened.info().participant != made.info().participant);
    CHECK(opened.try_acquire(100).error().status() == shmbroker::Status::denied);
  }
  const auto writer = support::connect(broker.socket());
  CHECK(shmbroker::Pool::open(writer, name).try_acquire(100));
}

TEST_CASE("programs that start in any order get one pool, whole, by open_or_create") {
  const harness::BrokerFixture broker;
  const auto session = support::connect(broker.socket());
  const auto group = session.create_group({});
  session.join(group.token);
  constexpr std::size_t kPrograms = 6;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::vector<harness::Child> programs;
  for (std::size_t i = 0; i < kPrograms; ++i)
    programs.push_back(harness::Child::run([&] {
      const auto own = support::connect(broker.socket());
      own.join(group.token);
      auto options = pool_named("shared");
      options.classes = {{std::uint64_t{1} << 20, 2}, {4096, 2}, {64, 2}};
      const auto pool = shmbroker::Pool::open_or_create(own, options);
      const shmb_pool_info info = pool.info();
      if (info.slots != 6) return 1;
      return ::write(ends[1], &info.id, sizeof info.id) == sizeof info.id ? 0 : 2;
    }));
  for (auto& program : programs) CHECK(program.wait() == 0);
  std::uint64_t ids[kPrograms] = {};
  CHECK(::read(ends[0], ids, sizeof ids) == sizeof ids);
  for (const std::uint64_t id : ids) CHECK(id == ids[0]);
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(shmbroker::Pool::try_open_or_create(session, pool_named("")).error().status() == shmbroker::Status::invalid);
}

TEST_CASE("opening a pool as a region, or a region as a pool, names the true kind") {
  const harness::BrokerFixture broker;
  const auto session = support::connect(broker.socket());
  const auto pool = shmbroker::Pool::create(session, pool_named("p"));
  shmbroker::CreateOptions region;
  region.name = "r";
  const auto made = session.create(4096, region);
  const auto as_region = session.try_attach("p");
  REQUIRE_FALSE(as_region.has_value());
  CHECK(as_region.error().status() == shmbroker::Status::not_found);
  CHECK(std::string(as_region.error().what()).find("but a pool of that name: open it as a pool") != std::string::npos);
  const auto as_pool = shmbroker::Pool::try_open(session, std::string("r"));
  REQUIRE_FALSE(as_pool.has_value());
  CHECK(std::string(as_pool.error().what()).find("but a region of that name: open it as a region") !=
        std::string::npos);
}
