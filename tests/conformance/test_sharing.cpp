// SPDX-License-Identifier: Apache-2.0
// Scenarios 1 to 10 and 17: tensors between processes that live. Each with both strategies, and all ways to start.
#include <dirent.h>
#include <unistd.h>

#include <memory>

#include "tests/conformance/world.hpp"
#include "tests/harness/child.hpp"

using namespace conformance;
using namespace std::chrono_literals;

namespace {

constexpr int kTimes = 10;  // of each way to start: 30 with each strategy

// Names in /dev/shm that a process of this program could have left.
int left_in_dev_shm() {
  const std::string own = std::to_string(::getpid());
  int count = 0;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/dev/shm"), ::closedir);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr)
    count += std::string(entry->d_name).find(own) != std::string::npos;
  return count;
}

int tenth_free_descriptor() {
  int found[10];
  for (int& one : found) one = ::dup(0);
  const int tenth = found[9];
  for (const int one : found) ::close(one);
  return tenth;
}

}  // namespace

TEST_CASE("1: a session leaves no object; the check sees one that is held") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    {
      auto held = support::connect(broker.socket()).create(4096);
      CHECK(broker.books(0).find("1 regions") != std::string::npos);
    }
    CHECK(broker.books() == "");
    CHECK(left_in_dev_shm() == 0);
  }
}

TEST_CASE("2: a scenario leaves no descriptor open") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const int before = tenth_free_descriptor();
    {
      const World world(broker);
      auto peer = shmbroker::spawn("echo", process_of(broker, method), world.pool, 20);
      for (int i = 0; i < 20; ++i) world.put({Tensor::zeros(Type::float64, {100})});
      for (int i = 0; i < 20; ++i) CHECK(get(world.in).tensors.at(0).all(0));
      CHECK(peer.join());
    }
    CHECK(tenth_free_descriptor() == before);
    CHECK(broker.books() == "");
  }
}

TEST_CASE("a rank has the strategy of its parent, or the one that its environment names") {
  const harness::BrokerFixture broker;
  for (const StartMethod method : kStartMethods) {
    CAPTURE(std::string(text_of(method)));
    auto options = process_of(broker, method);
    options.join = true;
    EACH_STRATEGY(strategy)
    CHECK(shmbroker::spawn("strategy_of", options).result<std::string>(0) == strategy);
    options.environment = {"SHMBROKER_SHARING_STRATEGY=file_descriptor"};
    EACH_STRATEGY(strategy)
    CHECK(shmbroker::spawn("strategy_of", options).result<std::string>(0) == "file_descriptor");
    options.environment = {"SHMBROKER_SHARING_STRATEGY=none"};
    CHECK_THROWS_WITH_AS(shmbroker::spawn("strategy_of", options), doctest::Contains("there is no sharing strategy"),
                         shmbroker::ProcessRaisedException);
  }
}

TEST_CASE("3: a child fills what it was sent, and the parent sees it in the whole and in the column") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods)
    for (int i = 0; i < kTimes; ++i) {
      CAPTURE(strategy);
      CAPTURE(std::string(text_of(method)));
      {
        const World world(broker);
        const Tensor x = Tensor::zeros(Type::float64, {5, 5}), column = x.column(1);
        auto child = shmbroker::spawn("fill_with_four", process_of(broker, method), world.pool);
        world.put({x, column});
        CHECK(world.word() == "event");
        CHECK(x.all(4));
        CHECK(column.all(4));
        CHECK(child.join(100s));
      }
      CHECK(broker.books() == "");
    }
}

TEST_CASE("4: a tensor that comes twice is one storage at one address") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods)
    for (int i = 0; i < kTimes; ++i) {
      CAPTURE(strategy);
      CAPTURE(std::string(text_of(method)));
      {
        const World world(broker);
        auto child = shmbroker::spawn("send_ones_twice", process_of(broker, method), world.pool);
        {
          const Tensor first = get(world.in).tensors.at(0), second = get(world.in).tensors.at(0);
          CHECK(first.all(1));
          CHECK(equal(first, second));
          CHECK(first.storage == second.storage);
          CHECK(first.storage->data() == second.storage->data());
          CHECK(first.is_shared());
          const Received both = get(world.in);
          CHECK(both.tensors.at(0).storage == both.tensors.at(1).storage);
          CHECK(both.tensors.at(1).all(2));
        }
        world.out.send("go");
        CHECK(child.join(100s));
      }
      CHECK(broker.books() == "");
    }
}

TEST_CASE("5: a message from a process to itself gives the storage that it already has") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (int i = 0; i < 30; ++i) {
    CAPTURE(strategy);
    {
      const World world(broker);
      auto mine = world.pool.open_queue("mine", Role::both, {.kind = QueueKind::mpmc});
      Tensor x = Tensor::zeros(Type::float32, {5, 5});
      x.fill(2);
      const Tensor all{x.storage, x.type, {25}, {1}, 0};
      put(world.place(), mine, {all, x, x.row(1), x.column(2)});
      const Received back = get(mine);
      REQUIRE(back.tensors.size() == 4);
      CHECK(equal(back.tensors[1], x));
      CHECK(equal(back.tensors[3], x.column(2)));
      for (const Tensor& one : back.tensors) CHECK(one.storage == x.storage);
    }
    CHECK(broker.books() == "");
  }
}

TEST_CASE("6: two processes map a function over four private buffers: results return, and the buffers are changed") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods)
    for (int i = 0; i < kTimes; ++i) {
      CAPTURE(strategy);
      CAPTURE(std::string(text_of(method)));
      {
        const World world(broker);
        auto crew = shmbroker::spawn("map_plus_one", process_of(broker, method, 2), world.pool);
        std::vector<Tensor> buffers;
        for (std::uint64_t n = 0; n < 4; ++n) {
          buffers.push_back(Tensor::zeros(Type::float64, {2, 2}));
          CHECK_FALSE(buffers.back().is_shared());
          world.put({buffers.back()}, n);
        }
        std::uint64_t seen = 0;
        for (int n = 0; n < 4; ++n) {
          const Received result = get(world.in);
          CHECK(result.tensors.at(0).all(5));
          seen |= 1U << result.type;
        }
        CHECK(seen == 15);
        for (const Tensor& buffer : buffers) CHECK(buffer.all(4));
        world.out.shutdown();
        CHECK(crew.join(100s));
      }
      CHECK(broker.books() == "");
    }
}

TEST_CASE("7: an object is there from put on, and gone when it has been taken and dropped") {
  const harness::BrokerFixture broker;
  constexpr std::size_t kBytes = 4 * sizeof(double);
  EACH_STRATEGY(strategy)
  for (int i = 0; i < 5; ++i) {
    CAPTURE(strategy);
    const Observer observer(broker);
    const World world(broker);
    auto mine = world.pool.open_queue("mine", Role::both, {.kind = QueueKind::mpmc});
    CHECK(observer.regions(kBytes) == 0);
    put(world.place(), mine, {Tensor::zeros(Type::float64, {4})});
    CHECK(observer.regions(kBytes) == 1);  // the sender has dropped its own
    {
      const Received back = get(mine);
      CHECK(back.tensors.at(0).all(0));
      CHECK(observer.regions(kBytes) == 1);
    }
    CHECK(observer.soon_has(0, kBytes));  // while its sender lives, and the queue
  }
}

TEST_CASE("8: a change by a child shows in the parent, inherited or as an argument") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    const Session session = support::connect(broker.socket());
    Tensor x = Tensor::zeros(Type::float64, {5, 5});
    x.share_memory(session);
    double due = 0;
    for (const StartMethod method : kStartMethods) {
      CAPTURE(std::string(text_of(method)));
      CHECK(shmbroker::spawn("add_three", process_of(broker, method), *x.storage->region()).join(100s));
      CHECK(x.all(due += 3));
    }
    auto child = harness::Child::run([&] {
      x.add(3);
      return 0;
    });
    CHECK(child.wait() == 0);
    CHECK(x.all(due + 3));
  }
}

TEST_CASE("9: a new tensor is private, and shared after share_memory") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    const Session session = support::connect(broker.socket());
    Tensor x = Tensor::zeros(Type::float64, {5, 5});
    x.fill(6);
    CHECK_FALSE(x.is_shared());
    x.share_memory(session);
    CHECK(x.is_shared());
    CHECK(x.all(6));
    CHECK(x.storage->region()->info().descriptor_kept == (strategy == "file_descriptor" ? 1U : 0U));
  }
}

TEST_CASE("10: an empty tensor can be shared and sent, and comes back empty") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const World world(broker);
    auto child = shmbroker::spawn("echo", process_of(broker, method), world.pool, 2);
    for (const Type type : {Type::float32, Type::int64}) {
      Tensor empty = Tensor::zeros(type, {0, 3});
      empty.share_memory(world.session);
      CHECK(empty.is_shared());
      CHECK(empty.storage->data() != nullptr);
      const Tensor unshared = Tensor::zeros(type, {4, 0});
      world.put({empty, unshared, empty});
      const Received back = get(world.in);
      REQUIRE(back.tensors.size() == 3);
      CHECK(equal(back.tensors[0], empty));
      CHECK(equal(back.tensors[1], unshared));
      CHECK(back.tensors[0].storage == empty.storage);
      CHECK(back.tensors[1].storage == unshared.storage);
      CHECK(back.tensors[2].storage == empty.storage);
      CHECK(unshared.is_shared());
    }
    CHECK(child.join(100s));
    const auto none = world.session.create(0);
    auto told = shmbroker::spawn("length_of", process_of(broker, method), none);
    CHECK(told.join(100s));
    CHECK(told.result<std::uint64_t>(0) == 0);
  }
}

TEST_CASE("17: a thread has the name that it was given, whatever the library does") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    auto options = process_of(broker, method);
    options.join = true;
    CHECK(shmbroker::spawn("name_thread", options, "loader").result<std::string>(0) == "loader");
  }
}
