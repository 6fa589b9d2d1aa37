// SPDX-License-Identifier: Apache-2.0
// Remote at its ends: arguments that are changed as soon as they are sent, answers that nobody wants any more, objects
// that a shutdown finds in use, queues and worlds that are full, events that were lost.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <future>
#include <optional>

#include "client/calls/remote_calls.hpp"
#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

using Soon = shmb::client::Deadline;
using std::chrono::milliseconds;

constexpr int kMostWaiting = 65536;  // calls in the memory of a worker

bool word_is(int word, int value) {
  for (int i = 0; i < 4000 && words().numbers[word] != value; ++i) pause_ms(5);
  return words().numbers[word] == value;
}

bool word_reaches(int word, int value) {
  for (int i = 0; i < 4000 && words().numbers[word] < value; ++i) pause_ms(5);
  return words().numbers[word] >= value;
}

int sum_of(const std::vector<int>& numbers) {
  int sum = 0;
  for (const int one : numbers) sum += one;
  return sum;
}
std::size_t sum_of_bytes(const remote::Bytes& bytes) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += static_cast<std::size_t>(bytes.data()[i]);
  return sum;
}
Remote<int> late_own(int after_ms) {
  pause_ms(after_ms);
  ++words().numbers[5];
  return Remote<int>(5);
}
void until_word() {
  words().numbers[2] = 1;
  EXPECT(word_is(1, 1));
}

int value_of_word() {
  until_word();
  return 7;
}

// Whether this process can have another descriptor.
void allow_descriptors(bool on) {
  static rlimit old{};
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  if (on) {
    now.rlim_cur = old.rlim_cur;
  } else {
    old = now;
    const int lowest = ::dup(0);
    EXPECT(lowest >= 0);
    ::close(lowest);
    now.rlim_cur = static_cast<rlim_t>(lowest);
  }
  EXPECT(::setrlimit(RLIMIT_NOFILE, &now) == 0);
}

// An object that a method uses for longer than its worker's shutdown waits.
class Lasting {
 public:
  explicit Lasting(int) { ++words().numbers[6]; }
  Lasting(Lasting&&) noexcept { ++words().numbers[6]; }
  ~Lasting() { --words().numbers[6]; }
  void use() {
    words().numbers[2] = 1;
    EXPECT(word_is(1, 1));
    words().numbers[7] = words().numbers[6].load();
    words().numbers[3] = 1;
  }
};

SHMBROKER_REMOTE_FUNCTION("sum_of", sum_of);
SHMBROKER_REMOTE_FUNCTION("sum_of_bytes", sum_of_bytes);
SHMBROKER_REMOTE_FUNCTION("late_own", late_own);
SHMBROKER_REMOTE_FUNCTION("allow_descriptors", allow_descriptors);
SHMBROKER_REMOTE_FUNCTION("until_word", until_word);
SHMBROKER_REMOTE_FUNCTION("value_of_word", value_of_word);
SHMBROKER_REMOTE_CLASS("Lasting", Lasting, int);
SHMBROKER_REMOTE_METHOD("Lasting.use", &Lasting::use);

void work_in_crowd(int rank, int size) {
  remote::InitOptions options;
  options.address = kAddress;
  remote::init("w" + std::to_string(rank), rank, size, options);
  std::vector<std::pair<int, Future<int>>> sums;
  for (const int ahead : {0, 1, 7, 63}) {
    const int to = (rank + ahead) % size;
    sums.emplace_back(rank + to, remote::rpc_async<int>(to, "add", rank, to));
  }
  for (const auto& [sum, call] : sums) EXPECT(call.wait() == sum);
  const auto made = remote::remote<int>((rank + 7) % size, "add", rank, 1);
  EXPECT(remote::rpc_sync<int>((rank + 31) % size, "unwrap", made) == rank + 1);
  remote::shutdown();
}

constexpr int kFewerThanAQueueHolds = 200;

int sends_and_counts() {
  EXPECT(word_is(1, 1));
  std::vector<Future<void>> calls;
  const auto patient = remote::at("c").within(120s);
  for (int i = 0; i < kFewerThanAQueueHolds; ++i) calls.push_back(remote::rpc_async<void>(patient, "nothing"));
  return static_cast<int>(remote::counters().waiting);
}
SHMBROKER_REMOTE_FUNCTION("sends_and_counts", sends_and_counts);

}  // namespace

TEST_CASE("A payload that its receiver cannot map fails the call at once, with a sentence, and the workers go on") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 1) {
      EXPECT(serve_until([] { return words().numbers[0] == 1; }));
      return;
    }
    const auto to = remote::at("b").within(std::chrono::hours(1));
    const std::vector<int> many(400'000, 1);  // more than the slots that all have mapped can take
    Status status{};
    remote::rpc_sync<void>("b", "allow_descriptors", false);
    const std::string arguments = thrown([&] { (void)remote::rpc_sync<int>(to, "sum_of", many); }, &status);
    EXPECT(status == Status::no_descriptors);
    EXPECT(has(arguments, "descriptor"));
    EXPECT(remote::rpc_sync<int>("b", "sum_of", std::vector<int>{1, 2}) == 3);
    remote::rpc_sync<void>("b", "allow_descriptors", true);
    EXPECT(remote::rpc_sync<int>("b", "sum_of", many) == 400'000);

    allow_descriptors(false);
    const std::string result =
        thrown([&] { (void)remote::rpc_sync<std::string>(to, "repeated", std::size_t{1'000'000}); }, &status);
    allow_descriptors(true);
    EXPECT(status == Status::no_descriptors);
    EXPECT(has(result, "descriptor"));
    EXPECT(remote::rpc_sync<std::string>("b", "repeated", std::size_t{1'000'000}).size() == 1'000'000);
    words().numbers[0] = 1;
  });
}

TEST_CASE("If the broker does not answer, a call ends at its own deadline, whatever it carries") {
  World world;
  const pid_t broker = world.broker.pid();
  world.run(2, [broker](int rank) {
    if (rank == 1) {
      EXPECT(serve_until([] { return words().numbers[0] == 1; }));
      return;
    }
    EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);
    const std::vector<int> many(400'000, 1);
    harness::stop(broker);
    std::promise<void> done;
    auto in_time = std::async(std::launch::async, [broker, waited = done.get_future()] {
      const auto ended = waited.wait_for(std::chrono::seconds(30));  // the broker's own time-outs would take longer
      ::kill(broker, SIGCONT);
      return ended == std::future_status::ready;
    });
    bool late = true;
    for (int i = 0; i < 5; ++i) {
      Status status{};
      (void)thrown([&] { (void)remote::rpc_sync<int>(remote::at("b").within(50ms), "sum_of", many); }, &status);
      late = late && status == Status::deadline;
    }
    done.set_value();
    EXPECT(in_time.get());
    EXPECT(late);
    EXPECT(remote::rpc_sync<int>("b", "sum_of", many) == 400'000);
    words().numbers[0] = 1;
  });
}

TEST_CASE("Arguments are copied or leased before rpc_async and remote return: what is done to them then is not seen") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 1) {  // looks at nothing before the arguments are gone
      EXPECT(word_is(1, 1));
      return;
    }
    std::vector<int> few(10, 1), many(100'000, 1);
    std::vector<Future<int>> sums;
    sums.push_back(remote::rpc_async<int>("b", "sum_of", few));
    sums.push_back(remote::rpc_async<int>("b", "sum_of", many));
    const auto made = remote::remote<int>("b", "sum_of", few), large = remote::remote<int>("b", "sum_of", many);
    std::optional<remote::Bytes> bytes(std::in_place, std::size_t{1} << 20);
    std::fill_n(bytes->data(), bytes->size(), std::byte{1});
    const auto in_region = rpc_async<std::size_t>(remote::To("b"), "sum_of_bytes", *bytes);
    bytes.reset();  // the message has a lease of its own
    std::optional<Remote<int>> own(std::in_place, 40);
    const auto unwrapped = remote::rpc_async<int>("b", "unwrap", *own);
    own.reset();
    for (auto* all : {&few, &many}) all->assign(all->size(), 7);
    words().numbers[1] = 1;
    EXPECT(sums[0].wait() == 10);
    EXPECT(sums[1].wait() == 100'000);
    EXPECT(made.to_here() == 10);
    EXPECT(large.to_here() == 100'000);
    EXPECT(in_region.wait() == std::size_t{1} << 20);
    EXPECT(unwrapped.wait() == 40);
  });
}

TEST_CASE("References in an answer that comes too late are let go, and the worker goes on") {
  for (const unsigned threads : {0U, 1U}) {
    CAPTURE(threads);
    World world;
    world.run(
        2,
        [](int rank) {
          if (rank == 0) {
            Status status{};
            (void)thrown([] { (void)remote::rpc_sync<Remote<int>>(remote::at("b").within(50ms), "late_own", 300); },
                         &status);
            EXPECT(status == Status::deadline);
            EXPECT(serve_until([] { return words().numbers[5] == 1; }));
            EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);              // behind the late answer
            EXPECT(serve_until([] { return remote::counters().held == 0; }));  // another thread may be at it
            words().numbers[1] = 1;
          } else {
            EXPECT(serve_until([] { return words().numbers[1] == 1; }));
            EXPECT(serve_until([] { return remote::counters().owned == 0; }));
          }
        },
        threads);
  }
}

TEST_CASE("An object that a call uses beyond the deadline of its worker's shutdown is not taken from under it") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2, rank == 1 ? 1 : 0);
    if (rank == 0) {
      const auto lasting = remote::remote<Lasting>("b", "Lasting", 1);
      const auto call = lasting.rpc_async<void>("Lasting.use");
      Status status{};
      (void)thrown([&] { call.wait(); }, &status);
      EXPECT(status == Status::worker_gone || status == Status::owner_gone);
      words().numbers[1] = 1;  // the worker has left: its shutdown has dealt with its objects
      EXPECT(word_is(3, 1));
      EXPECT(words().numbers[7] == 1);
      remote::ShutdownOptions local;
      local.graceful = false;
      return (void)remote::shutdown(local);
    }
    EXPECT(word_is(2, 1));  // the thread runs the method
    remote::ShutdownOptions short_one;
    short_one.timeout = milliseconds(100);
    Status status{};
    (void)thrown([&] { remote::shutdown(short_one); }, &status);
    EXPECT(status == Status::deadline);
    EXPECT(word_is(3, 1));
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("An owner forgets requests for a value that is not there yet when their deadlines have passed") {
  World world;
  world.run(
      2,
      [](int rank) {
        if (rank == 1) {
          EXPECT(word_is(4, 1));
          EXPECT(remote::counters().waiting <= 1);  // each new one sweeps out those before it
          words().numbers[1] = 1;
          return;
        }
        const auto value = remote::remote<int>(remote::at("b").within(60s), "value_of_word");
        EXPECT(word_is(2, 1));
        for (int i = 0; i < 5; ++i) {
          Status status{};
          (void)thrown([&] { (void)value.to_here(30ms); }, &status);
          EXPECT(status == Status::deadline);
        }
        words().numbers[4] = 1;
        EXPECT(value.to_here() == 7);
      },
      2);
}

TEST_CASE("Behind a worker whose threads are busy 65,536 calls wait, and further ones fail at once") {
  constexpr int kMore = 50;
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2, rank == 1 ? 1 : 0);
    if (rank == 1) {
      // Waits, so that what comes is read, and serves nothing.
      const auto over = [](void*) { return words().numbers[3] == 1 ? 1 : 0; };
      EXPECT(shmb_remote_wait(remote::detail::world()->c(), over, nullptr, SHMB_FOREVER, nullptr) == SHMB_OK);
      return (void)remote::shutdown();
    }
    const auto patient = remote::at("b").within(300s);
    const auto busy = remote::rpc_async<void>(patient, "until_word");
    EXPECT(word_is(2, 1));
    std::vector<Future<void>> calls;
    for (int i = 0; i < kMostWaiting + kMore; ++i) calls.push_back(remote::rpc_async<void>(patient, "nothing"));
    // The last ones are refused while all others wait.
    Status status{};
    for (int i = kMostWaiting; i < kMostWaiting + kMore; ++i) {
      const std::string why = thrown([&] { calls[static_cast<std::size_t>(i)].wait(); }, &status);
      EXPECT(status == Status::limit);
      EXPECT(has(why, "65536 calls wait"));
    }
    EXPECT(words().numbers[15] == 0);
    words().numbers[1] = 1;
    busy.wait();
    for (int i = 0; i < kMostWaiting; ++i) calls[static_cast<std::size_t>(i)].wait();
    EXPECT(words().numbers[15] == kMostWaiting);
    words().numbers[3] = 1;
    remote::rpc_sync<void>(patient, "nothing");  // or nothing would make "b" look at the word
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A result for which its caller has no room holds its worker no longer than the caller waits, or lives") {
  for (const bool dies : {false, true}) {
    CAPTURE(dies);
    World world;
    const auto statuses = world.run_bare(2, [dies](int rank) {
      join(rank, 2);
      std::vector<Future<void>> calls;
      if (rank == 1) {
        // So its answers soon find the queue of the other worker full, which reads nothing meanwhile.
        constexpr int kNearlyFull = 250;
        const auto patient = remote::at("a").within(60s);
        for (int i = 0; i < kNearlyFull; ++i) calls.push_back(remote::rpc_async<void>(patient, "nothing"));
        words().numbers[4] = 1;
        EXPECT(serve_until([] { return words().numbers[1] == 1; }));
        EXPECT(serve_until([] { return remote::counters().waiting == 0; }));
        words().numbers[2] = 1;
        return (void)remote::shutdown();
      }
      EXPECT(word_is(4, 1));
      constexpr int kFewerThanUntilItReads = 50, kMoreThanFit = 7;
      const auto to = remote::at("b").within(dies ? Timeout::forever() : Timeout(1s));
      for (int i = 0; i < kFewerThanUntilItReads; ++i) calls.push_back(remote::rpc_async<void>(to, "nothing"));
      EXPECT(word_reaches(15, kMoreThanFit));
      words().numbers[1] = 1;
      if (dies) ::raise(SIGKILL);
      EXPECT(word_is(2, 1));
      remote::shutdown();
    });
    CHECK(statuses == std::vector<int>{dies ? 128 + SIGKILL : 0, 0});
  }
}

TEST_CASE("A worker that sends many calls while it runs one leaves the requests of others in its queue") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3, rank == 2 ? 1 : 0);
    if (rank == 0) {
      const auto patient = remote::at("b").within(120s);
      const auto waiting = remote::rpc_async<int>(patient, "sends_and_counts");
      std::vector<Future<void>> calls;
      for (int i = 0; i < kFewerThanAQueueHolds; ++i) calls.push_back(remote::rpc_async<void>(patient, "nothing"));
      words().numbers[1] = 1;
      EXPECT(waiting.wait() < 128);
      for (auto& call : calls) call.wait();
    }
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

TEST_CASE("init returns although more events came meanwhile than are kept: it reads the lost ones from the list") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    if (rank == 0) {
      words().numbers[1] = static_cast<int>(::getpid());
      join(0, 3);
      return (void)remote::shutdown();
    }
    if (rank == 2) {
      EXPECT(word_is(2, 1));
      join(2, 3);
      return (void)remote::shutdown();
    }
    EXPECT(word_reaches(1, 1));
    const auto session = shmb::client::connect();
    EXPECT(session.has_value());
    const auto has_pool = [&] {
      const auto list = shmb::client::list_worlds(**session, {}, Soon::after(0));
      return list && !list->rows.empty() && list->rows.front().record.pool != 0;
    };
    for (int i = 0; i < 4000 && !has_pool(); ++i) pause_ms(5);
    EXPECT(has_pool());
    const auto stopped = static_cast<pid_t>(words().numbers[1].load());
    harness::stop(stopped);
    // Each coming and going is told to the one that is stopped; then that the world is complete, once.
    shmb::client::WorldRequest wish;
    wish.port = 29500;
    wish.rank = 2;
    wish.world_size = 3;
    wish.address = kAddress;
    wish.name = "c";
    for (int i = 0; i < 300; ++i) {
      const auto place = shmb::client::join_world(**session, wish, Soon::after(0));
      EXPECT(place.has_value());
      EXPECT(shmb::client::leave_world(**session, place->world, Soon::after(0)).has_value());
    }
    words().numbers[2] = 1;
    join(1, 3);
    ::kill(stopped, SIGCONT);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

TEST_CASE(
    "A world of 64 workers: each calls some others, and nothing is left of it, in the books or in the processes") {
  constexpr int kSize = 64;
  World world;
  std::vector<harness::Child> workers;
  REQUIRE(world.broker.running());
  for (int rank = 0; rank < kSize; ++rank)
    workers.push_back(harness::Child::run([rank] {
      try {
        const std::size_t before = harness::open_descriptors();
        work_in_crowd(rank, kSize);
        EXPECT(harness::open_descriptors() == before);
        return 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "worker %d: %s\n", rank, error.what());
        return 1;
      }
    }));
  for (auto& one : workers) CHECK(one.wait() == 0);
  const auto session = shmb::client::connect();
  REQUIRE(session);
  const auto left = [&] {
    const auto worlds = shmb::client::list_worlds(**session, {}, Soon::after(0));
    const auto references = shmb::client::list_references(**session, {}, Soon::after(0));
    const auto pools = shmb::client::list_pools(**session, {}, Soon::after(0));
    const auto regions = shmb::client::list_regions(**session, {}, Soon::after(0));
    return !worlds || !references || !pools || !regions ||
           worlds->rows.size() + references->rows.size() + pools->rows.size() + regions->rows.size() != 0;
  };
  for (int i = 0; i < 3000 && left(); ++i) pause_ms(10);
  CHECK(!left());
}

}  // namespace remote_test
