// SPDX-License-Identifier: Apache-2.0
// How worlds begin and end: meeting, refusals, deaths of workers, shutdown. The numbers are those of
// docs/conformance.md.
#include <cstdlib>

#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

remote::InitOptions options_at(const std::string& address) {
  remote::InitOptions options;
  options.address = address;
  return options;
}
// The worker's own end, as of a program that crashes.
[[noreturn]] void die() {
  ::raise(SIGKILL);
  std::abort();
}
// How many workers the broker's one world has.
std::uint32_t present() {
  const auto session = shmb::client::connect();
  if (!session) return 0;
  const auto list = shmb::client::list_worlds(**session, {}, shmb::client::Deadline::after(0));
  return list && !list->rows.empty() ? list->rows.front().record.present : 0;
}
bool wait_present(std::uint32_t count) {
  for (int i = 0; i < 3000 && present() != count; ++i) pause_ms(10);
  return present() == count;
}
constexpr int kKilled = 128 + SIGKILL;

// Of all workers, once their processes are gone.
bool nothing_left() {
  using shmb::client::Deadline;
  const auto session = shmb::client::connect();
  if (!session) return false;
  const auto none = [](const auto& list) { return list && list->rows.empty(); };
  for (int i = 0; i < 3000; ++i) {
    if (none(shmb::client::list_worlds(**session, {}, Deadline::after(0))) &&
        none(shmb::client::list_references(**session, {}, Deadline::after(0))) &&
        none(shmb::client::list_pools(**session, {}, Deadline::after(0))) &&
        none(shmb::client::list_regions(**session, {}, Deadline::after(0))))
      return true;
    pause_ms(10);
  }
  return false;
}

}  // namespace

TEST_CASE("88: local shutdown works at once, without and after traffic, and init works again") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    remote::ShutdownOptions local;
    local.graceful = false;
    join(rank, 2);
    remote::shutdown(local);
    join(rank, 2);
    if (rank == 0) EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);
    if (rank == 0) words().numbers[1] = 1;
    EXPECT(serve_until([] { return words().numbers[1] == 1; }));
    remote::shutdown(local);
    join(rank, 2);
    remote::shutdown();
    Status status{};
    EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "add", 1, 2); }, &status), "has not been initialized"));
    EXPECT(status == Status::closed);
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("89: a call to a worker that has gone is an error") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3);
    if (rank == 1) {
      EXPECT(serve_until([] { return words().numbers[1] == 2; }));
      die();
    }
    const auto before = remote::remote<int>("b", "slow_add", 1, 2, 1);
    EXPECT(before.to_here() == 3);
    ++words().numbers[1];
    Status status{};
    EXPECT(
        serve_until([&] { return !thrown([] { (void)remote::rpc_sync<int>("b", "add", 1, 2); }, &status).empty(); }));
    EXPECT(status == Status::worker_gone);
    EXPECT(has(thrown([] { (void)remote::remote<int>("b", "add", 1, 2); }), "has died"));
    EXPECT(has(thrown([&] { (void)before.to_here(); }, &status), "has died"));
    EXPECT(status == Status::owner_gone);
    EXPECT(remote::rpc_sync<int>(2 - rank, "add", 1, 2) == 3);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, kKilled, 0});
}

TEST_CASE("98: when a user of many references is killed, the owner's count goes back to none") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2);
    if (rank == 0) {
      std::vector<Remote<int>> held;
      for (int i = 0; i < 50; ++i) held.push_back(remote::remote<int>("b", "add", i, 0));
      for (const auto& one : held) (void)one.to_here();
      words().numbers[1] = 1;
      EXPECT(serve_until([] { return words().numbers[2] == 1; }));
      die();
    }
    EXPECT(serve_until([] { return words().numbers[1] == 1; }));
    EXPECT(remote::counters().owned == 50);
    EXPECT(remote::counters().users == 50);
    words().numbers[2] = 1;
    EXPECT(serve_until([] { return remote::counters().owned == 0; }));
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{kKilled, 0});
}

TEST_CASE("99: when an owner is killed, waiting and later operations fail, and shutdown ends") {
  for (const unsigned threads : {0U, 2U}) {
    CAPTURE(threads);
    World world;
    const auto statuses = world.run_bare(3, [threads](int rank) {
      join(rank, 3, threads);
      if (rank == 1) {
        std::thread([] {  // however busy it is
          while (words().numbers[1] != 2) pause_ms(1);
          pause_ms(50);
          die();
        })
            .detach();
        for (;;) (void)remote::serve();
      }
      std::optional<Remote<int>> made;
      std::vector<Future<int>> waiting;
      if (rank == 0) {
        made = remote::remote<int>("b", "add", 1, 2);
        EXPECT(made->to_here() == 3);
        words().numbers[2] = 1;
      }
      EXPECT(serve_until([] { return words().numbers[2] == 1; }));  // from here on the owner has no time
      waiting.push_back(remote::rpc_async<int>("b", "slow_add", 1, 2, 60'000));
      const auto pending = remote::remote<int>("b", "slow_add", 1, 2, 60'000);
      waiting.push_back(pending.to_here_async());
      ++words().numbers[1];
      Status status{};
      for (const auto& one : waiting) {
        (void)thrown([&] { (void)one.wait(); }, &status);
        EXPECT(status == Status::worker_gone || status == Status::owner_gone);
      }
      (void)thrown([&] { (void)pending.to_here(); }, &status);
      EXPECT(status == Status::owner_gone);
      if (made) {
        (void)thrown([&] { (void)made->to_here(); }, &status);
        EXPECT(status == Status::owner_gone);
        (void)thrown([&] { (void)remote::rpc_sync<int>("c", "unwrap", *made); }, &status);
        EXPECT(status == Status::owner_gone);
      }
      remote::shutdown();
    });
    CHECK(statuses == std::vector<int>{0, kKilled, 0});
  }
}

TEST_CASE("A worker that dies in a call, and one that leaves, end what waits for them") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3);
    Status status{};
    if (rank == 0) {
      (void)thrown([] { (void)remote::rpc_sync<std::string>("b", "dies"); }, &status);
      EXPECT(status == Status::worker_gone);
      words().numbers[1] = 1;
      EXPECT(serve_until([] { return words().numbers[2] == 1; }));
      EXPECT(
          serve_until([&] { return !thrown([] { (void)remote::rpc_sync<int>("c", "add", 1, 1); }, &status).empty(); }));
      EXPECT(status == Status::worker_gone);
    } else if (rank == 1) {
      (void)remote::serve();
    } else {
      EXPECT(serve_until([] { return words().numbers[1] == 1; }));
      remote::ShutdownOptions local;
      local.graceful = false;
      remote::shutdown(local);
      words().numbers[2] = 1;
      return;
    }
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, kKilled, 0});
}

TEST_CASE("A child that is forked within a call has no world, and the call goes on") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 0) EXPECT(remote::rpc_sync<int>("b", "forks_inside") == 0);
  });
}

TEST_CASE("A graceful shutdown that others do not join ends at its deadline and names the missing workers") {
  World world;
  world.run(
      2,
      [](int rank) {
        if (rank == 1) {
          EXPECT(serve_until([] { return words().numbers[1] == 1; }));
          remote::ShutdownOptions local;
          local.graceful = false;
          remote::shutdown(local);
          return;
        }
        remote::ShutdownOptions options;
        options.timeout = std::chrono::milliseconds(300);
        Status status{};
        EXPECT(has(thrown([&] { remote::shutdown(options); }, &status), "worker \"b\" (rank 1)"));
        EXPECT(status == Status::deadline);
        EXPECT(has(thrown([] { (void)remote::rank(); }), "has not been initialized"));
        words().numbers[1] = 1;
      },
      0, false);
}

TEST_CASE("init refuses what cannot be, in words") {
  World world;
  const auto statuses = world.run_bare(1, [](int) {
    const auto refused = [](const char* name, int rank, int size, const std::string& address, Status wanted,
                            const std::string& words) {
      Status status = Status::ok;
      const std::string text = thrown([&] { remote::init(name, rank, size, options_at(address)); }, &status);
      if (status != wanted || !has(text, words)) throw std::logic_error("refused with: " + text);
    };
    refused("a", 2, 2, kAddress, Status::invalid, "rank 2 is out of range");
    refused("a", 0, -1, kAddress, Status::invalid, "1 to 64 workers");
    refused("a", 0, 65, kAddress, Status::limit, "at most 64 workers");
    refused("a b", 0, 2, kAddress, Status::invalid, "name");
    refused("", 0, 2, kAddress, Status::invalid, "name");
    refused("a", 0, 2, "192.0.2.7:1234", Status::invalid, "another host");
    refused("a", 0, 2, "example.invalid:1234", Status::invalid, "other names are not looked up");
    refused("a", 0, 2, "[2001:db8::1]:1234", Status::invalid, "another host");
    refused("a", 0, 2, "localhost", Status::invalid, "HOST:PORT");
    refused("a", 0, 2, "localhost:0", Status::invalid, "1 to 65535");
    refused("a", 0, 2, "localhost:70000", Status::invalid, "1 to 65535");
    ::unsetenv("RANK"), ::unsetenv("MASTER_ADDR"), ::unsetenv("MASTER_PORT");
    refused("a", -1, 2, kAddress, Status::invalid, "RANK");
    refused("a", 0, 2, "", Status::invalid, "MASTER_ADDR");
    auto options = options_at(kAddress);
    options.timeout = std::chrono::seconds(2);
    Status status{};
    EXPECT(has(thrown([&] { remote::init("a", 0, 2, options); }, &status), "rank 1 has not come"));
    EXPECT(status == Status::deadline);
    // By this host's name, as a launcher may give it.
    char own[256] = {};
    EXPECT(::gethostname(own, sizeof own - 1) == 0);
    if (own[0] != 0 && std::string(own).find(':') == std::string::npos) {
      remote::init("alone", 0, 1, options_at(std::string(own) + ":29500"));
      remote::shutdown();
    }
    // By the variables of a launcher, and alone.
    ::setenv("MASTER_ADDR", "127.0.0.1", 1), ::setenv("MASTER_PORT", "29500", 1);
    ::setenv("RANK", "0", 1), ::setenv("WORLD_SIZE", "1", 1);
    remote::init("alone");
    EXPECT(remote::rpc_sync<int>("alone", "add", 1, 2) == 3);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0});
}

TEST_CASE("A rank or a running world that is taken is refused, and the others are not disturbed") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    if (rank < 2) {
      if (rank == 1)
        while (words().numbers[1] == 0) pause_ms(5);
      join(rank, 2);
      EXPECT(serve_until([] { return words().numbers[2] == 1; }));
      EXPECT(remote::rpc_sync<int>(1 - rank, "add", 1, 2) == 3);
      remote::shutdown();
      return;
    }
    const auto refusal = [](const char* name, int mine, int size) {
      Status status = Status::ok;
      (void)thrown([&] { remote::init(name, mine, size, options_at(kAddress)); }, &status);
      return status;
    };
    EXPECT(wait_present(1));
    EXPECT(refusal("x", 0, 2) == Status::exists);
    EXPECT(refusal("a", 0, 2) == Status::exists);
    EXPECT(refusal("x", 1, 3) == Status::invalid);
    words().numbers[1] = 1;
    Status status = Status::ok;
    for (int i = 0; i < 1000 && status != Status::world_taken; ++i) {
      status = refusal("a", 0, 2);
      pause_ms(10);
    }
    EXPECT(status == Status::world_taken);
    words().numbers[2] = 1;
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

TEST_CASE("A worker's name has up to 127 bytes, as torch's, and is reported whole") {
  World world;
  const std::string longest(127, 'n');
  const auto statuses = world.run_bare(2, [&](int rank) {
    remote::init(rank == 0 ? longest : std::string(100, 'm'), rank, 2, options_at(kAddress));
    EXPECT(remote::rpc_sync<int>(rank == 0 ? std::string(100, 'm') : longest, "add", 1, 2) == 3);
    EXPECT(remote::worker_info(0).name == longest);
    const auto value = remote::remote<int>(longest, "add", 1, 2);
    EXPECT(value.owner_name() == longest);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0});
  Status status = Status::ok;
  const std::string text = thrown([&] { remote::init(longest + "n", 0, 1, options_at(kAddress)); }, &status);
  CHECK(status == Status::invalid);
  CHECK_MESSAGE(has(text, "127"), text);
}

TEST_CASE("init ends with an error when a worker that it has seen dies before the world is complete") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    if (rank == 1) {
      auto options = options_at(kAddress);
      while (words().numbers[1] == 0) pause_ms(5);
      std::thread([] {
        (void)wait_present(2);
        die();
      }).detach();
      remote::init("b", 1, 3, options);
      return;
    }
    words().numbers[1] = 1;
    Status status{};
    const std::string text = thrown([] { remote::init("a", 0, 3, options_at(kAddress)); }, &status);
    EXPECT(status == Status::worker_gone);
    EXPECT(has(text, "died"));
  });
  CHECK(statuses == std::vector<int>{0, kKilled});
}

TEST_CASE("Workers that are killed in the midst of calls leave nothing, and no other worker hangs") {
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    World world;
    const auto statuses = world.run_bare(3, [round](int rank) {
      join(rank, 3, round % 2 == 0 ? 0 : 1);
      if (rank == 1)
        std::thread([round] {
          pause_ms(20 + 37 * round);
          die();
        }).detach();
      std::vector<Remote<int>> held;
      try {
        for (int i = 0; i < 100'000; ++i) {
          held.push_back(remote::remote<int>(1, "add", i, rank));
          EXPECT(held.back().to_here() == i + rank);
          if (held.size() > 20) held.erase(held.begin(), held.begin() + 15);
          EXPECT(remote::rpc_sync<int>((rank + 1) % 3, "unwrap", held.front()) == held.front().to_here());
        }
      } catch (const std::exception& error) {
        if (!has(error.what(), "died") && !has(error.what(), "gone"))
          throw std::logic_error(std::string("another error: ") + error.what());
      }
      if (rank == 1)
        for (;;) (void)remote::serve();
      remote::shutdown();
    });
    CHECK(statuses == std::vector<int>{0, kKilled, 0});
    CHECK(nothing_left());
  }
}

// An answer is waited for 5 s. Without a bound on all of them together the values and the queues to each worker would
// take minutes, and the alarm ends the worker.
TEST_CASE("A shutdown ends although the broker does not answer, however many values are asked about") {
  World world;
  const auto broker = world.broker.pid();
  const auto statuses = world.run_bare(2, [broker](int rank) {
    join(rank, 2);
    if (rank == 1) {
      (void)serve_until([] { return words().numbers[0] != 0; });
      remote::shutdown({.graceful = false});
      return;
    }
    std::vector<Remote<int>> values;
    for (int i = 0; i < 20; ++i) values.emplace_back(i);
    for (const auto& one : values) remote::rpc_sync<void>("b", "keep", one);
    harness::stop(broker);
    ::alarm(60);
    remote::ShutdownOptions short_time;
    short_time.timeout = std::chrono::milliseconds(100);
    EXPECT(!thrown([&] { remote::shutdown(short_time); }).empty());
    EXPECT(::kill(broker, SIGCONT) == 0);
    words().numbers[0] = 1;
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

}  // namespace remote_test
