// SPDX-License-Identifier: Apache-2.0
// Remote where things cross: references that are let go while their value is under way, peers that do not read, workers
// that leave as soon as they have come, the end of the world's group.
#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

using shmb::client::Deadline;

struct Unmoved {  // after the first time
  int moves = 0;
  Unmoved() = default;
  Unmoved(const Unmoved&) = default;
  Unmoved(Unmoved&& other) : moves(other.moves + 1) {
    if (moves > 1) throw std::runtime_error("not moved again");
  }
  MSGPACK_DEFINE(moves)
};
Unmoved unmoved() { return {}; }
std::optional<Remote<int>> one_kept;
void keep_one(const Remote<int>& value) { one_kept = value; }
int unwrap_one() { return one_kept.value().to_here(); }
void let_one_go() { one_kept.reset(); }
// Returns when the worker that runs it knows that the other one has died.
bool outlives(const std::string& other) {
  for (int i = 0; i < 6000; ++i) {
    if (has(thrown([&] { (void)remote::rpc_async<void>(other, "nothing"); }), "has died")) return true;
    pause_ms(10);
  }
  return false;
}
enum Word { blocked = 5, late = 6, sent = 7, arrived = 8, over = 9 };
void block_until_dead(const std::string& other) {
  words().numbers[blocked] = 1;
  EXPECT(outlives(other));
}
struct LateCounter {
  explicit LateCounter(const std::string& other) {
    words().numbers[late] = 1;
    // Its maker's request is here, and waits for it.
    for (int i = 0; i < 6000 && (words().numbers[sent] == 0 || remote::counters().waiting == 0); ++i) pause_ms(10);
    words().numbers[arrived] = 1;
    EXPECT(outlives(other));
  }
  int add(int by) { return value += by; }
  int value = 5;
};
SHMBROKER_REMOTE_FUNCTION("block_until_dead", block_until_dead);
SHMBROKER_REMOTE_CLASS("LateCounter", LateCounter, std::string);
SHMBROKER_REMOTE_METHOD("LateCounter.add", &LateCounter::add);
SHMBROKER_REMOTE_FUNCTION("unmoved", unmoved);
SHMBROKER_REMOTE_FUNCTION("keep_one", keep_one);
SHMBROKER_REMOTE_FUNCTION("unwrap_one", unwrap_one);
SHMBROKER_REMOTE_FUNCTION("let_one_go", let_one_go);

int one_more(int value) { return value + 1; }
int two_more(int value) { return value + 2; }
// A macro may register what it is given, so several registrations stand on one line.
#define REGISTER_BOTH                              \
  SHMBROKER_REMOTE_FUNCTION("one_more", one_more); \
  SHMBROKER_REMOTE_FUNCTION("two_more", two_more); \
  SHMBROKER_SPAWN_FUNCTION("one_more", one_more);  \
  SHMBROKER_SPAWN_FUNCTION("two_more", two_more)
REGISTER_BOTH;
void throws_from_two() {
  try {
    try {
      throw std::out_of_range("the deepest");
    } catch (...) {
      std::throw_with_nested(OwnError("in between"));
    }
  } catch (...) {
    std::throw_with_nested(std::invalid_argument("the last"));
  }
}
void lets_pass(const std::string& at) { remote::rpc_sync<void>(at, "throws_from_two"); }
void throws_from_remote(const std::string& at) {
  try {
    remote::rpc_sync<void>(at, "throws_from_two");
  } catch (...) {
    std::throw_with_nested(std::length_error("with a cause from elsewhere"));
  }
}
SHMBROKER_REMOTE_FUNCTION("throws_from_two", throws_from_two);
SHMBROKER_REMOTE_FUNCTION("lets_pass", lets_pass);
SHMBROKER_REMOTE_FUNCTION("throws_from_remote", throws_from_remote);
using Causes = std::vector<shmbroker::RaisedCause>;
const Causes& both_causes() {
  static const Causes both = {{"remote_test::OwnError", "in between"}, {"std::out_of_range", "the deepest"}};
  return both;
}
// The exceptions as they were thrown, one from the other.
void check_chain(const std::invalid_argument& last) {
  const auto* const told = dynamic_cast<const remote::RemoteFailure*>(&last);
  EXPECT(told != nullptr);
  EXPECT(told->type() == "std::invalid_argument");
  EXPECT(told->text() == "the last");
  EXPECT(told->causes() == both_causes());
  EXPECT(has(last.what(), "caused by std::out_of_range: the deepest"));
  bool reached = false;
  try {
    std::rethrow_if_nested(last);
  } catch (const OwnError& middle) {
    try {
      std::rethrow_if_nested(middle);
    } catch (const std::out_of_range& first) {
      reached = has(first.what(), "the deepest");
    }
  }
  EXPECT(reached);
}

struct Sleepy {
  int after(int milliseconds) {
    pause_ms(milliseconds);
    return milliseconds;
  }
};
SHMBROKER_REMOTE_CLASS("Sleepy", Sleepy);
SHMBROKER_REMOTE_METHOD("Sleepy.after", &Sleepy::after);

// As the broker says, whom this process asks without serving.
bool no_references_soon() {
  const auto session = shmb::client::connect();
  if (!session) return false;
  for (int i = 0; i < 3000; ++i) {
    const auto list = shmb::client::list_references(**session, {}, Deadline::after(0));
    if (list && list->rows.empty()) return true;
    pause_ms(10);
  }
  return false;
}
bool comes(int word, int value) {
  for (int i = 0; i < 4000 && words().numbers[word] != value; ++i) pause_ms(10);
  return words().numbers[word] == value;
}

}  // namespace

TEST_CASE("A value that is asked for stays until the answer, also where the reference is let go at once") {
  for (const unsigned threads : {0U, 2U}) {
    CAPTURE(threads);
    World world;
    world.run(
        2,
        [](int rank) {
          if (rank != 0) return;
          const auto patient = remote::at("b").within(30s);
          EXPECT(remote::remote<int>(patient, "slow_add", 1, 2, 300).to_here_async(30s).wait() == 3);
          std::vector<Future<int>> values;
          for (int i = 0; i < 50; ++i) values.push_back(remote::remote<int>(patient, "add", i, 1).to_here_async(30s));
          for (int i = 0; i < 50; ++i) EXPECT(values[static_cast<std::size_t>(i)].wait() == i + 1);
        },
        threads);
  }
}

TEST_CASE("A value shared again lives on after the event that no worker refers to it") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    std::optional<Remote<int>> own(std::in_place, 40);
    EXPECT(remote::rpc_sync<int>("b", "unwrap", *own) == 40);
    EXPECT(no_references_soon());  // this worker has not heard of it
    const auto kept = remote::rpc_async<void>("b", "keep_one", *own);
    own.reset();
    kept.wait();
    for (int i = 0; i < 10; ++i) (void)remote::serve(std::chrono::milliseconds(5));
    EXPECT(remote::rpc_sync<int>(remote::at("b").within(30s), "unwrap_one") == 40);
    remote::rpc_sync<void>("b", "let_one_go");
    EXPECT(serve_until([] { return remote::counters().owned == 0; }));
  });
}

TEST_CASE("A value is put away once, also where its worker hears twice in a row that no worker refers to it") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    std::optional<Remote<int>> own(std::in_place, 40);
    const auto first = remote::rpc_async<bool>("b", "is_confirmed", *own);
    EXPECT(no_references_soon());  // this worker has not looked
    const auto second = remote::rpc_async<bool>("b", "is_confirmed", *own);
    EXPECT(no_references_soon());
    own.reset();
    EXPECT(first.wait());
    EXPECT(second.wait());
    EXPECT(serve_until([] { return remote::counters().owned == 0; }));
    EXPECT(remote::rpc_sync<int>("b", "unwrap", Remote<int>(41)) == 41);
  });
}

TEST_CASE("A worker keeps its own deadlines although a peer that it owes a word does not read") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 0) {
      const auto made = remote::remote<int>("b", "add", 1, 2);
      words().numbers[1] = 1;
      EXPECT(comes(2, 1));
      EXPECT(made.to_here() == 3);
      return;
    }
    EXPECT(comes(1, 1));
    Status status{};
    for (int i = 0; i < 100'000 && status != Status::deadline; ++i)
      (void)thrown([] { (void)remote::rpc_async<void>(remote::at("a").within(300ms), "nothing"); }, &status);
    EXPECT(status == Status::deadline);
    words().numbers[2] = 1;
  });
}

TEST_CASE("Workers may leave as soon as they have come, again and again") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    remote::ShutdownOptions local;
    local.graceful = false;
    for (int i = 0; i < 20; ++i) {
      join(rank, 3);
      remote::shutdown(local);
    }
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

TEST_CASE("After the end of the world's group references and calls say so, and shutdown ends") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2);
    Status status{};
    std::optional<Remote<int>> value;
    if (rank == 0) {
      value = remote::remote<int>("b", "add", 1, 2);
      EXPECT(value->to_here() == 3);
      const auto session = shmb::client::connect();
      EXPECT(session.has_value());
      const auto list = shmb::client::list_worlds(**session, {}, Deadline::after(0));
      EXPECT(list && list->rows.size() == 1);
      EXPECT((*session)->end_group(list->rows.front().record.group, "", 0, Deadline::after(0)).has_value());
      (void)thrown([&] { (void)value->to_here(); }, &status);
      EXPECT(status == Status::group_ended);
      (void)thrown([&] { (void)value->to_here(); }, &status);
      EXPECT(status == Status::group_ended);
    } else {
      (void)thrown([] { (void)remote::serve(std::chrono::seconds(60)); }, &status);
      EXPECT(status == Status::group_ended);
    }
    (void)thrown([rank] { (void)remote::rpc_sync<int>(1 - rank, "add", 1, 2); }, &status);
    EXPECT(status == Status::group_ended);
    (void)thrown([] { (void)remote::shutdown(); }, &status);
    EXPECT(status == Status::group_ended);
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A value that a worker asked for is made although it dies before: others hold a reference to it") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3, rank == 1 ? 1 : 0);
    if (rank == 0) {
      EXPECT(serve_until([] { return one_kept.has_value(); }));
      EXPECT(one_kept->to_here(30s) == 3);
      one_kept.reset();
      words().numbers[over] = 1;
    } else if (rank == 1) {
      // Its one thread is busy meanwhile, and what comes is read by this one, which serves nobody.
      remote::rpc_sync<void>(remote::at("b").within(60s), "block_until_dead", "c");
      EXPECT(comes(over, 1));
    } else {
      EXPECT(comes(blocked, 1));
      const auto made = remote::remote<int>(remote::at("b").within(60s), "add", 1, 2);
      remote::rpc_sync<void>("a", "keep_one", made);
      ::raise(SIGKILL);
    }
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0, 128 + SIGKILL});
}

TEST_CASE("A caller that waits for room in the queue of a dying worker gets an error long before its deadline") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2);
    if (rank == 1) {  // takes nothing, and dies when nothing more has been sent for a while
      int seen = 0;
      for (int still = 0; still < 30; pause_ms(10)) {
        const int now = words().numbers[sent];
        still = now != 0 && now == seen ? still + 1 : 0;
        seen = now;
      }
      ::raise(SIGKILL);
    }
    Status status{};
    for (int i = 1; i < 100'000 && status == Status{}; ++i) {
      words().numbers[sent] = i;
      (void)thrown([] { (void)remote::rpc_async<void>(remote::at("b").within(120s), "nothing"); }, &status);
    }
    EXPECT(status == Status::worker_gone);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 128 + SIGKILL});
}

TEST_CASE("A request about a value that is not there yet is done although its worker dies before") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3, rank == 1 ? 2 : 0);
    if (rank == 0) {
      EXPECT(serve_until([] { return one_kept.has_value(); }));
      EXPECT(one_kept->to_here(30s) == 7);
      one_kept.reset();
      words().numbers[over] = 1;
    } else if (rank == 1) {
      EXPECT(comes(over, 1));
    } else {
      const auto object = remote::remote<LateCounter>(remote::at("b").within(60s), "LateCounter", "c");
      EXPECT(comes(late, 1));
      const auto sum = object.remote<int>("LateCounter.add", 2);
      remote::rpc_sync<void>("a", "keep_one", sum);
      words().numbers[sent] = 1;
      EXPECT(comes(arrived, 1));
      ::raise(SIGKILL);
    }
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0, 128 + SIGKILL});
}

TEST_CASE("A callback of one world may leave that world, join another one and shut it down") {
  World world;
  const auto statuses = world.run_bare(1, [](int) {
    join(0, 1);
    bool done = false;
    const auto first = remote::rpc_async<int>("a", "add", 1, 2);
    first.when_done([&done](const Future<int>& sum) {
      EXPECT(sum.wait() == 3);
      remote::shutdown({.timeout = std::chrono::seconds(30)});
      join(0, 1);
      EXPECT(remote::rpc_sync<int>("a", "add", 3, 4) == 7);
      remote::shutdown({.timeout = std::chrono::seconds(30)});
      done = true;
    });
    EXPECT(first.wait() == 3);
    EXPECT(done);
  });
  CHECK(statuses == std::vector<int>{0});
}

TEST_CASE("An exception of a value while it is put away fails its creation, and its worker goes on") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    const auto made = remote::remote<void>("b", "unmoved");
    EXPECT(has(thrown([&] { made.created().wait(); }), "not moved again"));
    EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);
  });
}

TEST_CASE("A type that was not there in time is asked for again") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    const auto value = remote::remote<int>("b", "slow_add", 1, 2, 500);
    Status status{};
    (void)thrown([&] { (void)value.type(10ms); }, &status);
    EXPECT(status == Status::deadline);
    EXPECT(value.type() == "int");
  });
}

TEST_CASE("Functions that are registered on one line are all there") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    EXPECT(remote::rpc_sync<int>("b", "one_more", 1) == 2);
    EXPECT(remote::rpc_sync<int>("b", "two_more", 1) == 3);
  });
}

TEST_CASE("An exception thrown from another one arrives with its causes, also through a third worker") {
  World world;
  world.run(3, [](int rank) {
    if (rank != 0) return;
    int caught = 0;
    const auto check = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::invalid_argument& last) {
        check_chain(last);
        ++caught;
      }
    };
    check([] { remote::rpc_sync<void>("b", "throws_from_two"); });
    check([] { remote::rpc_sync<void>("b", "lets_pass", std::string("c")); });
    check([] { remote::rpc_sync<void>("a", "throws_from_two"); });
    check([] { remote::remote<void>("b", "throws_from_two").to_here(); });
    EXPECT(caught == 4);
    try {
      remote::rpc_sync<void>("b", "throws_from_remote", std::string("c"));
    } catch (const std::length_error& error) {
      const auto& causes = dynamic_cast<const remote::RemoteFailure&>(error).causes();
      EXPECT(causes.size() == 3);
      EXPECT(causes[0].type == "std::invalid_argument");
      EXPECT(causes[2].type == "std::out_of_range");
      ++caught;
    }
    EXPECT(caught == 5);
  });
}

TEST_CASE("A method that is called through a reference has a timeout of its own, in all three forms") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    const auto sleepy = remote::remote<Sleepy>("b", "Sleepy");
    EXPECT(sleepy.within(60s).remote<int>("Sleepy.after", 1).to_here() == 1);
    EXPECT(sleepy.within(60s).rpc_sync<int>("Sleepy.after", 2) == 2);
    const auto passed = [](const std::function<void()>& call) {
      Status status = Status::ok;
      (void)thrown(call, &status);
      return status == Status::deadline;
    };
    EXPECT(passed([&] { (void)sleepy.within(20ms).rpc_sync<int>("Sleepy.after", 300); }));
    EXPECT(passed([&] { (void)sleepy.within(20ms).rpc_async<int>("Sleepy.after", 300).wait(); }));
    const auto late = sleepy.within(std::chrono::milliseconds(20)).remote<int>("Sleepy.after", 300);
    EXPECT(passed([&] { (void)late.to_here(60s); }));
    EXPECT(late.state() == Remote<int>::State::failed);
  });
}

}  // namespace remote_test
