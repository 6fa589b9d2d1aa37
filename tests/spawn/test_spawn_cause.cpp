// SPDX-License-Identifier: Apache-2.0
// The cause of a failed call is the rank that failed first. Other ranks get its end from a barrier, a queue or a
// remote call and fail because of it. They may be dead before it is.
//
//   test_ranks --rounds 5000 [--seed 7] [--load 8] -tc='cause:*'     the long form, beside so many busy processes
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>

#include "client/face/shmbroker_pool.hpp"
#include "spawn/ranks/verdict.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/ranks.hpp"
#include "tests/support/arguments.hpp"

namespace causes_told {

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

// Processes that only compute.
class Load {
 public:
  explicit Load(std::uint64_t processes) {
    for (std::uint64_t i = 0; i < processes; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile bool go_on = true; go_on;) {
        }
      }
      pids_.push_back(pid);
    }
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }

 private:
  std::vector<pid_t> pids_;
};

// A run of random rounds: what differs from one to the next is drawn here.
struct Draw {
  Draw() { random.seed(static_cast<std::mt19937::result_type>(seed)); }
  template <class List>
  auto of(const List& list) {
    return std::string(list[random() % std::size(list)]);
  }
  int below(int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); }
  const std::uint64_t seed = support::argument("--seed", std::random_device{}());
  std::mt19937 random;
};

std::uint64_t rounds(std::uint64_t short_form) {
  return support::argument("--rounds", std::max<std::uint64_t>(3, short_form / harness::kSlowdown));
}

constexpr const char* kFalls[] = {"throw", "throw_slowly", "nest", "exit", "exit_orderly", "kill", "abort", "leave"};
constexpr const char* kAnswers[] = {"pass", "own", "nest", "exit", "kill"};
constexpr const char* kNotices[] = {"barrier", "broadcast", "gather", "wait", "get"};

// The rank that a call blames, with which words, and what was drawn for the round.
struct Blamed {
  int rank = -1;
  std::string text = "nobody";
  std::string drawn;
};
template <class... A>
Blamed blamed(const std::string& drawn, const std::string& function, const SpawnOptions& options,
              const A&... arguments) {
  try {
    (void)spawn(function, options, arguments...);
  } catch (const ProcessException& thrown) {
    return {thrown.error_index(), thrown.what(), drawn};
  }
  return {.drawn = drawn};
}

// Each round starts 2 to `most_ranks` ranks, of which `who` fails first, and expects the call to blame that one.
// `round` makes the call: round(draw, options, who).
template <class Round>
void expect_blame(std::uint64_t short_form, int most_ranks, Round&& round) {
  Draw draw;
  CAPTURE(draw.seed);
  const std::uint64_t count = rounds(short_form);
  const Load load(support::argument("--load", 0));
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const StartMethod method = kMethods[i % std::size(kMethods)];
    const int ranks = 2 + draw.below(most_ranks - 1), who = draw.below(ranks);
    SpawnOptions options = ranks_of(method, ranks);
    const Blamed told = round(draw, options, who);
    wrong += told.rank != who;
    CAPTURE(std::string(name_of(method)) + ", " + std::to_string(ranks) + " ranks: " + told.drawn);
    CAPTURE(options.voluntary.nanoseconds());
    CAPTURE(told.text);
    CHECK(told.rank == who);
  }
  MESSAGE(count << " rounds, " << wrong << " times another rank was blamed");
}

// With time before SIGTERM all ranks fail by themselves.
void draw_time(Draw& draw, SpawnOptions& options) {
  if (draw.below(2) == 0) options.voluntary = 60s;
}
void use(const harness::BrokerFixture& broker, SpawnOptions& options) {
  options.no_group = false;
  options.socket = broker.socket();
}

TEST_CASE("cause: a rank that waits in any way for the one that failed is not blamed") {
  expect_blame(45, 16, [](Draw& draw, SpawnOptions& options, int who) {
    const std::string how = draw.of(kFalls), notice = draw.of(kNotices), reaction = draw.of(kAnswers);
    if (notice != "get") draw_time(draw, options);  // ranks that poll would not fail
    return blamed(how + " " + notice + " " + reaction, "fall_among", options, who, how, notice, reaction);
  });
}

TEST_CASE("cause: a rank that learns of the failed rank's end from a queue is not blamed") {
  const harness::BrokerFixture broker;
  REQUIRE(broker.running());
  auto session = Session::connect({.socket = broker.socket()});
  expect_blame(24, 8, [&](Draw& draw, SpawnOptions& options, int who) {
    const std::string how = draw.of(kFalls), reaction = draw.of(kAnswers);
    const bool they_read = draw.below(2) == 0;
    const auto pool = Pool::create(session, {.classes = {{.slot_size = 256, .slots = 8}}});
    use(broker, options);
    draw_time(draw, options);
    return blamed(how + " " + reaction + (they_read ? " readers" : " writers"), "fall_from_queues", options, who, how,
                  reaction, they_read, pool);
  });
}

TEST_CASE("cause: a rank that learns of the failed rank's end from a remote call is not blamed") {
  const harness::BrokerFixture broker;
  REQUIRE(broker.running());
  expect_blame(12, 6, [&](Draw& draw, SpawnOptions& options, int who) {
    const std::string how = draw.of(kFalls), reaction = draw.of(kAnswers);
    use(broker, options);
    draw_time(draw, options);
    return blamed(how + " " + reaction, "fall_from_world", options, who, how, reaction, broker.socket());
  });
}

TEST_CASE("cause: deaths that the supervisor sees all at once are reported in the order in which they happened") {
  for (const StartMethod method : kMethods) {
    CAPTURE(std::string(name_of(method)));
    Witness witness;
    auto options = ranks_of(method, 6, false);
    options.environment = {witness.ready_variable()};
    auto context = spawn("stay", options, false, false);
    REQUIRE(witness.wait_ready(6));
    const pid_t supervisor = only_child(only_child(::getpid()));
    REQUIRE(supervisor > 0);
    const auto is_dead = [](pid_t pid) {
      for (int i = 0; i < 60'000; ++i, ::usleep(1000))
        if (auto now = shmb::spawn::process(pid); now && now->state == 'Z') return true;
      return false;
    };
    harness::stop(supervisor);
    const std::vector<int> order{4, 1, 5, 0, 2, 3};
    for (const int rank : order) {
      const pid_t pid = context.pids()[static_cast<std::size_t>(rank)];
      ::kill(pid, SIGKILL);
      REQUIRE(is_dead(pid));
    }
    ::kill(supervisor, SIGCONT);
    CHECK(*context.try_join() == RanksState::failed);
    std::vector<int> told;
    for (const RankFailure& one : context.failures()) told.push_back(one.rank);
    CHECK(told == order);
  }
}

TEST_CASE("cause: a failure that follows the news of another one's end gives way to one that follows none") {
  using shmb::spawn::Failure;
  const auto failure = [](int rank, std::int64_t ms, std::int64_t heard_ms, bool by_us = false) {
    Failure one;
    one.rank = rank, one.time = ms * 1'000'000, one.heard = heard_ms * 1'000'000, one.ended_by_us = by_us;
    return one;
  };
  const auto order = [](std::vector<Failure> failures) {
    shmb::spawn::put_in_order(failures);
    std::vector<int> ranks;
    for (const Failure& one : failures) ranks.push_back(one.rank);
    return ranks;
  };
  using Order = std::vector<int>;
  CHECK(order({failure(0, 20'000, 0), failure(1, 10'000, 0)}) == Order{1, 0});
  // Rank 1 heard of rank 0 before its death could be seen.
  CHECK(order({failure(1, 10'001, 10'000), failure(0, 10'002, 0)}) == Order{0, 1});
  CHECK(order({failure(2, 10'001, 10'000), failure(1, 10'003, 10'000), failure(0, 10'002, 0)}) == Order{0, 2, 1});
  // The end that it heard of cannot have been rank 0's end, or was long ago.
  CHECK(order({failure(1, 10'001, 10'000), failure(0, 12'000, 0)}) == Order{1, 0});
  CHECK(order({failure(1, 10'001, 1), failure(0, 10'002, 0)}) == Order{1, 0});
  // All have heard of one: the first of them.
  CHECK(order({failure(2, 10'003, 10'000), failure(1, 10'001, 10'000)}) == Order{1, 2});
  // A rank that we ended is last, and no rank's echo.
  CHECK(order({failure(2, 9'000, 0, true), failure(1, 10'001, 10'000), failure(0, 10'002, 0, true)}) == Order{1, 2, 0});
}

TEST_CASE("cause: of two failures a few milliseconds apart the earlier one is blamed") {
  const harness::TempDir folder;
  const std::string board = folder.file("board");
  expect_blame(30, 8, [&](Draw& draw, SpawnOptions& options, int first) {
    const int second = (first + 1 + draw.below(options.nprocs - 1)) % options.nprocs;
    constexpr const char* kWays[] = {"throw", "throw_slowly", "exit", "kill"};
    const std::string how_first = draw.of(kWays), how_second = draw.of(kWays);
    std::ofstream(board) << std::string(64, '\0');
    return blamed(how_first + " then " + how_second, "fall_apart", options, first, second, how_first, how_second,
                  1000 + draw.below(5000), board);
  });
}

}  // namespace causes_told
