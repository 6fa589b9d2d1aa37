// SPDX-License-Identifier: Apache-2.0
// Threads of two workers that do everything at once: what each of them gets is whole and its own, whichever way it
// came: in the message, in a slot of any size, in a region made because all slots were taken, or in one of its own.
#include <cstring>
#include <random>

#include "tests/harness/sanitizer.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

constexpr bool kSlow = harness::kThreadSanitizer || harness::kAddressSanitizer;
constexpr auto kPatience = 120s;
// In the message; in slots of each size; more than any slot has.
constexpr std::size_t kSizes[] = {0, 100, 70'000, 400'000, 600'000, 1'900'000, 3'000'000};

std::string patterned(std::uint64_t seed, std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t at = 0; at < size; at += 8) {
    seed = seed * 0x5851'f42d'4c95'7f2dU + 0x1405'7b7e'f767'814fU;
    std::memcpy(out.data() + at, &seed, std::min<std::size_t>(8, size - at));
  }
  return out;
}
std::uint64_t sum_of_text(std::string_view text) {
  std::uint64_t sum = text.size();
  for (std::size_t at = 0; at < text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
    sum = (sum ^ word) * 0x9e37'79b9'7f4a'7c15U;
  }
  return sum;
}
std::uint64_t checksum(const std::string& text) { return sum_of_text(text); }
std::uint64_t checksum_of_bytes(const remote::Bytes& bytes) { return sum_of_text(bytes.text()); }
remote::Bytes bytes_of(std::uint64_t seed, std::size_t size) { return remote::Bytes(patterned(seed, size)); }
std::uint64_t checksum_of_region(const shmbroker::ReadOnlyRegion& region, std::size_t size) {
  return sum_of_text({reinterpret_cast<const char*>(region.data()), size});
}
std::uint64_t checksum_of_value(const Remote<std::string>& value) { return sum_of_text(value.to_here(kPatience)); }
// With a call of its own, on the stack of whoever serves.
std::uint64_t checksum_by_other(const std::string& other, std::uint64_t seed, std::size_t size) {
  return remote::rpc_sync<std::uint64_t>(remote::at(other).within(kPatience), "checksum", patterned(seed, size));
}
SHMBROKER_REMOTE_FUNCTION("patterned", patterned);
SHMBROKER_REMOTE_FUNCTION("checksum", checksum);
SHMBROKER_REMOTE_FUNCTION("checksum_of_bytes", checksum_of_bytes);
SHMBROKER_REMOTE_FUNCTION("bytes_of", bytes_of);
SHMBROKER_REMOTE_FUNCTION("checksum_of_region", checksum_of_region);
SHMBROKER_REMOTE_FUNCTION("checksum_of_value", checksum_of_value);
SHMBROKER_REMOTE_FUNCTION("checksum_by_other", checksum_by_other);

int rank_there() { return remote::rank(); }
SHMBROKER_REMOTE_FUNCTION("rank_there", rank_there);

// Runs `body` in so many threads of this worker; throws what went wrong in one of them.
void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> wrong(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int n = 0; n < count; ++n)
    threads.emplace_back([&, n] { wrong[static_cast<std::size_t>(n)] = thrown([&] { body(n); }); });
  for (auto& thread : threads) thread.join();
  for (const std::string& one : wrong)
    if (!one.empty()) throw std::logic_error(one);
}

// The use of one reference by many threads.
void use_shared(const std::string& other, const Remote<std::string>& shared, std::uint64_t expected) {
  const Remote<std::string> copy = shared;
  EXPECT(sum_of_text(copy.to_here(kPatience)) == expected);
  EXPECT(has(copy.type(kPatience), "basic_string<char"));
  EXPECT(copy.confirmed_by_owner());
  EXPECT(remote::rpc_sync<std::uint64_t>(remote::at(other).within(kPatience), "checksum_of_value", copy) == expected);
}

}  // namespace

TEST_CASE("Threads of two workers pass everything to each other at once, and all of it arrives whole") {
  constexpr int kRounds = kSlow ? 8 : 100, kThreads = 5;
  World world;
  world.run(
      2,
      [](int rank) {
        const std::string own = name_of(rank), other = name_of(1 - rank);
        const auto patient = remote::at(other).within(kPatience);
        const auto session = shmbroker::Session::connect();
        const auto shared = remote::remote<std::string>(patient, "patterned", 1000 + rank, std::size_t{700'000});
        const std::uint64_t sum_of_shared = sum_of_text(patterned(1000U + static_cast<unsigned>(rank), 700'000));
        in_threads(kThreads, [&](int n) {
          std::mt19937_64 random(static_cast<std::uint64_t>(rank * 100 + n));
          for (int round = 0; round < kRounds; ++round) {
            const std::uint64_t seed = random();
            const std::size_t size = kSizes[random() % std::size(kSizes)];
            const std::string sent = patterned(seed, size);
            const std::uint64_t sum = sum_of_text(sent);
            switch (random() % 8) {
              case 0:
                EXPECT(remote::rpc_sync<std::uint64_t>(patient, "checksum", sent) == sum);
                break;
              case 1:
                EXPECT(remote::rpc_sync<std::string>(patient, "patterned", seed, size) == sent);
                break;
              case 2:
                EXPECT(remote::rpc_sync<remote::Bytes>(patient, "bytes_of", seed, size).text() == sent);
                EXPECT(remote::rpc_sync<std::uint64_t>(patient, "checksum_of_bytes", remote::Bytes(sent)) == sum);
                break;
              case 3: {
                const shmbroker::Region region = session.create(3'000'000);
                std::memcpy(region.data(), sent.data(), size);
                EXPECT(remote::rpc_sync<std::uint64_t>(patient, "checksum_of_region", region, size) == sum);
                break;
              }
              case 4: {
                const auto value = remote::remote<std::string>(patient, "patterned", seed, size);
                const Remote<std::string> copy = value;
                const auto later = copy.to_here_async(kPatience);
                EXPECT(value.to_here(kPatience) == sent);
                EXPECT(later.wait() == sent);
                break;
              }
              case 5:
                use_shared(other, shared, sum_of_shared);
                break;
              case 6:  // of itself: no message, but the same slots
                EXPECT(remote::rpc_sync<std::uint64_t>(remote::at(own).within(kPatience), "checksum", sent) == sum);
                break;
              default:
                EXPECT(remote::rpc_async<std::uint64_t>(patient, "checksum", sent)
                           .then([&](const Future<std::uint64_t>& first) {
                             return first.wait() + remote::rpc_sync<std::uint64_t>(remote::at(own).within(kPatience),
                                                                                   "checksum", sent);
                           })
                           .wait() == sum + sum);
                EXPECT(remote::rpc_sync<std::uint64_t>(patient, "checksum_by_other", own, seed, size) == sum);
            }
          }
        });
      },
      4);
}

TEST_CASE("Threads share a value: some ask for it while others pass it on for the first time") {
  constexpr int kRounds = kSlow ? 20 : 100;
  World world;
  world.run(
      2,
      [](int rank) {
        const auto patient = remote::at(name_of(1 - rank)).within(kPatience);
        for (int round = 0; round < kRounds; ++round) {
          const std::string text = patterned(static_cast<std::uint64_t>(round), 100);
          const Remote<std::string> own(text);
          in_threads(4, [&](int n) {
            if (n % 2 == 0) EXPECT(own.to_here_async(kPatience).wait() == text);
            else EXPECT(remote::rpc_sync<std::uint64_t>(patient, "checksum_of_value", own) == sum_of_text(text));
          });
        }
      },
      2);
}

TEST_CASE("A worker that is called before its init has returned answers: functions have its world already") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    for (int i = 0; i < 10; ++i) {
      join(rank, 2, rank == 0 ? 200 : 0);  // which it takes its time to start, while the first of them serve
      if (rank == 1)
        for (int call = 0; call < 20; ++call)
          EXPECT(remote::rpc_sync<int>(remote::at("a").within(kPatience), "rank_there") == 0);
      remote::shutdown();
    }
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("When threads have taken all slots of a size, regions serve, and what arrives is whole") {
  constexpr int kRounds = kSlow ? 2 : 5, kThreads = 4, kAtOnce = 10;  // 16 slots of a size, for arguments and results
  World world;
  world.run(
      2,
      [](int rank) {
        const auto patient = remote::at(name_of(1 - rank)).within(kPatience);
        in_threads(kThreads, [&](int n) {
          for (int round = 0; round < kRounds; ++round) {
            std::vector<Future<std::string>> all;
            for (unsigned i = 0; i < kAtOnce; ++i)
              all.push_back(remote::rpc_async<std::string>(patient, "patterned", n * 1000 + i, std::size_t{600'000}));
            for (unsigned i = 0; i < kAtOnce; ++i)
              EXPECT(all[i].wait() == patterned(static_cast<unsigned>(n) * 1000 + i, 600'000));
          }
        });
      },
      2);
}

TEST_CASE("Threads that call while their worker leaves the world and comes back get an answer, or an error") {
  constexpr int kWorlds = kSlow ? 3 : 6;
  for (const bool graceful : {true, false}) {
    CAPTURE(graceful);
    World world;
    const auto statuses = world.run_bare(2, [graceful](int rank) {
      std::atomic<bool> over = false;
      std::atomic<int> answered = 0;
      std::vector<std::string> wrong(3);
      std::vector<std::thread> threads;
      for (std::size_t n = 0; n < wrong.size(); ++n)
        threads.emplace_back([&, n] {
          for (std::size_t i = 0; !over && wrong[n].empty(); ++i) {
            Status status{};
            std::string got;
            const std::size_t size = kSizes[i % 4];
            const std::string why = thrown(
                [&] {
                  const auto to = remote::at(name_of(1 - rank)).within(kPatience);
                  const auto value = remote::remote<std::string>(to, "patterned", i, size);
                  EXPECT(value.to_here(kPatience) == patterned(i, size));
                  got = remote::rpc_sync<std::string>(to, "patterned", i, size);
                },
                &status);
            if (!why.empty() && status != Status::closed && status != Status::worker_gone &&
                status != Status::owner_gone && status != Status::invalid)
              wrong[n] = why;
            if (!why.empty()) pause_ms(1);
            if (why.empty() && got != patterned(i, size)) wrong[n] = "a call was answered with something else";
            if (why.empty()) ++answered;
          }
        });
      std::string ended;
      for (int i = 0; i < kWorlds && ended.empty(); ++i) {
        join(rank, 2, 2);
        const int before = answered;
        for (int look = 0; look < 1000 && answered < before + 3; ++look) pause_ms(1);
        Status status{};
        ended = thrown([&] { remote::shutdown({.graceful = graceful, .timeout = std::chrono::milliseconds(200)}); },
                       &status);
        if (status == Status::deadline) ended.clear();  // others call without end
      }
      over = true;
      for (auto& thread : threads) thread.join();
      for (const std::string& one : wrong)
        if (!one.empty()) throw std::logic_error(one);
      if (!ended.empty()) throw std::logic_error(ended);
    });
    CHECK(statuses == std::vector<int>{0, 0});
  }
}

}  // namespace remote_test
