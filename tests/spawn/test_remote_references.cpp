// SPDX-License-Identifier: Apache-2.0
// References: passing them on, at their owner, in the books, and when what makes them is lost or late. The numbers are
// those of docs/conformance.md.
#include <sstream>

#include "base/fault.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

std::function<void(int)> only_first(std::function<void()> body) {
  return [body = std::move(body)](int rank) {
    if (rank == 0) body();
  };
}
shmb_remote* current_worker() { return remote::detail::world()->c(); }

}  // namespace

TEST_CASE("71: references go as arguments to their owner, to a third worker, and within lists, 20 at a time") {
  World world;
  world.run(3, only_first([] {
              const auto one = remote::remote<int>("b", "add", 1, 0), two = remote::remote<int>("b", "add", 2, 0);
              EXPECT(remote::rpc_sync<int>("b", "unwrap_two", one, two) == 3);
              EXPECT(remote::rpc_sync<int>("c", "unwrap_two", one, two) == 3);
              EXPECT(remote::remote<int>("c", "unwrap_two", one, two).to_here() == 3);
              std::vector<Future<int>> sums;
              for (int i = 0; i < 20; ++i) {
                const auto list = remote::remote<std::vector<Remote<int>>>("b", "two_of", "c", i, 10);
                sums.push_back(remote::rpc_async<int>("c", "unwrap_list", list));
              }
              for (int i = 0; i < 20; ++i) EXPECT(sums[static_cast<std::size_t>(i)].wait() == i + 10);
            }));
}

TEST_CASE("72: a reference that is a result may be owned by a third worker") {
  World world;
  world.run(3, only_first([] {
              const auto made = remote::rpc_sync<Remote<int>>("b", "made_at", "c", 30, 12);
              EXPECT(made.owner_name() == "c");
              EXPECT(made.to_here() == 42);
              const auto own = remote::rpc_sync<Remote<int>>("b", "own_value", 5);
              EXPECT(own.owner_name() == "b");
              EXPECT(own.to_here() == 5);
              EXPECT(remote::remote<Remote<int>>("b", "made_at", "a", 1, 2).to_here().to_here() == 3);
            }));
}

TEST_CASE("73: a reference that goes round a ring eight times still has its value") {
  World world;
  world.run(4, only_first([] {
              const auto value = remote::remote<int>("c", "add", 40, 2);
              EXPECT(remote::rpc_sync<int>("b", "ring", value, 32) == 42);
            }));
}

TEST_CASE("74 and 82: a value of one's own is not booked until it is passed on; then counters follow its users") {
  World world;
  world.run(2, only_first([] {
              Remote<int> own(40);
              EXPECT(own.is_owner());
              EXPECT(own.confirmed_by_owner());
              EXPECT(own.local_value() == 40);
              EXPECT(own.text() == "OwnerRRef(local)");
              EXPECT(remote::counters().owned == 0);
              EXPECT(remote::rpc_sync<int>("b", "unwrap", own) == 40);
              EXPECT(remote::rpc_async<int>("b", "unwrap", own).wait() == 40);
              EXPECT(remote::remote<int>("b", "unwrap", own).to_here() == 40);
              own.local_value() += 50;
              EXPECT(remote::rpc_sync<int>("b", "unwrap", own) == 90);
              EXPECT(serve_until([] { return remote::counters().owned == 0; }));
              remote::rpc_sync<void>("b", "keep", own);
              EXPECT(remote::counters().owned == 1);
              EXPECT(remote::counters().users == 1);
              remote::rpc_sync<void>("b", "keep_none");
              EXPECT(serve_until([] { return remote::counters().users == 0 && remote::counters().owned == 0; }));
              EXPECT(own.local_value() == 90);
              {
                const auto one = remote::remote<int>("a", "add", 1, 0), two = remote::remote<int>("a", "add", 2, 0);
                EXPECT(one.to_here() + two.to_here() == 3);
                EXPECT(remote::counters().owned == 2);
              }
              EXPECT(serve_until([] { return remote::counters().owned == 0; }));
            }));
}

TEST_CASE("75: local_value() at a user names reference, fork, user and owner") {
  World world;
  world.run(
      2, only_first([] {
        const auto value = remote::remote<int>("b", "add", 1, 0);
        Status status{};
        const std::string text = thrown([&] { (void)value.local_value(); }, &status);
        EXPECT(status == Status::invalid);
        for (const char* part : {"rref_id=(0, 1)", "fork_id=(0, 2)", "worker \"a\" (rank 0)", "worker \"b\" (rank 1)"})
          EXPECT(has(text, part));
        EXPECT(value.to_here() == 1);
      }));
}

TEST_CASE("79: a reference that a third worker passed on is confirmed before the function starts") {
  World world;
  world.run(3, only_first([] {
              for (int i = 0; i < 20; ++i) {
                const auto value = remote::remote<int>("b", "add", i, 0);
                EXPECT(remote::rpc_sync<bool>("c", "is_confirmed", value));
                EXPECT(remote::remote<bool>("c", "is_confirmed", value).to_here());
              }
            }));
}

TEST_CASE(
    "80 and 81: references print their numbers, which count the same way each time, and creations have a future") {
  for (int round = 0; round < 2; ++round) {
    World world;
    world.run(
        2, only_first([] {
          const auto value = remote::remote<int>("b", "slow_add", 1, 2, 100);
          EXPECT(value.state() == Remote<int>::State::registered);
          std::ostringstream text;
          text << value;
          EXPECT(
              text.str() ==
              "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), ForkId = GloballyUniqueId(created_on=0, "
              "local_id=2))");
          value.created().wait();
          EXPECT(value.state() == Remote<int>::State::ready);
          EXPECT(value.confirmed_by_owner());
          EXPECT(remote::remote<int>("b", "add", 1, 2).text().find("local_id=3)") != std::string::npos);
        }));
  }
}

TEST_CASE("83: a reference cannot be packed outside of a call") {
  World world;
  world.run(2, only_first([] {
              const auto value = remote::remote<int>("b", "add", 1, 2);
              msgpack::sbuffer out;
              EXPECT(has(thrown([&] { msgpack::pack(out, value); }), "Can not pickle rref"));
            }));
}

TEST_CASE("85: a living reference makes shutdown fail with its leaks, or only counts them") {
  for (const bool ignore : {false, true}) {
    CAPTURE(ignore);
    World world;
    world.run(
        2,
        [ignore](int rank) {
          static std::optional<Remote<int>> kept;
          if (rank == 0) {
            kept = remote::remote<int>("b", "add", 1, 2);
            EXPECT(kept->to_here() == 3);
          }
          remote::ShutdownOptions options;
          options.end_references = false;
          options.ignore_leaks = ignore;
          if (rank == 0) {
            EXPECT(remote::shutdown(options) == 0);
            return;
          }
          std::uint32_t leaks = 0;
          Status status = Status::ok;
          const std::string text = thrown([&] { leaks = remote::shutdown(options); }, &status);
          if (ignore) EXPECT(leaks == 1);
          else EXPECT(status == Status::leaking && has(text, "Leaking RRef"));
        },
        0, false);
  }
}

TEST_CASE("86 and 101: cycles do not hold up a shutdown, not even those between two owners") {
  World world;
  world.run(2, only_first([] {
              auto here = remote::remote<Counter>("a", "Counter", 1),
                   there = remote::remote<Counter>("b", "Counter", 2);
              here.rpc_sync<void>("Counter.hold", there);
              there.rpc_sync<void>("Counter.hold", here);
              here.rpc_sync<void>("Counter.hold", here);
              EXPECT(there.rpc_sync<int>("Counter.value") == 2);
            }));
  CHECK(words().numbers[14] == 0);  // every object is gone
}

TEST_CASE("87: after shutdown a reference says that it was deleted") {
  World world;
  world.run(
      2,
      [](int rank) {
        std::optional<Remote<int>> value;
        if (rank == 0) value = remote::remote<int>("b", "add", 1, 2);
        remote::shutdown();
        if (rank != 0) return;
        Status status{};
        EXPECT(has(thrown([&] { (void)value->to_here(); }, &status), "Cannot call to_here() on it after deletion"));
        EXPECT(status == Status::closed);
        remote::InitOptions elsewhere;
        elsewhere.address = "localhost:29600";
        remote::init("a", 0, 1, elsewhere);
        EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("a", "unwrap", *value); }),
                   "Cannot call fork an UserRRef after deletion"));
        remote::shutdown();
      },
      0, false);
}

TEST_CASE("91: a to_here() that was too short fails by its own deadline, and the next one has the value") {
  World world;
  world.run(2, only_first([] {
              const auto value = remote::remote<int>("b", "slow_add", 1, 2, 1000);
              Status status{};
              EXPECT(has(thrown([&] { (void)value.to_here(10ms); }, &status), "ran for more than its timeout"));
              EXPECT(status == Status::deadline);
              EXPECT(value.to_here() == 3);
            }));
}

TEST_CASE("92 and 100: a creation whose deadline has passed has failed, for every call and every worker") {
  for (const char* owner : {"b", "a"}) {
    CAPTURE(owner);
    World world;
    world.run(3, only_first([owner] {
                const auto value = remote::remote<int>(remote::at(owner).within(500ms), "slow_add", 1, 2, 3000);
                Status status{};
                for (int i = 0; i < 3; ++i) {
                  const std::string text = thrown([&] { (void)value.to_here(); }, &status);
                  EXPECT(status == Status::deadline);
                  EXPECT(has(text, "RRef creation"));
                  EXPECT(has(text, "timed out"));
                }
                EXPECT(has(thrown([&] { value.created().wait(); }), "timed out"));
                EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("c", "unwrap", value); }), "timed out"));
                EXPECT(value.state() == Remote<int>::State::failed);
              }));
  }
}

TEST_CASE("92: a creation of 1 ms of a slow function fails, and shutdown ends once its owner is through") {
  World world;
  world.run(2, only_first([] {
              const auto value = remote::remote<int>(remote::at("b").within(1ms), "slow_add", 1, 2, 1000);
              Status status{};
              EXPECT(has(thrown([&] { value.created().wait(); }, &status), "timed out"));
              EXPECT(status == Status::deadline);
              EXPECT(has(thrown([&] { (void)value.to_here(); }), "RRef creation"));
            }));
}

TEST_CASE("92b: a worker that got the reference before the deadline passed gets the same error") {
  World world;
  world.run(3, only_first([] {
              const auto value = remote::remote<int>(remote::at("b").within(2s), "slow_add", 1, 2, 5000);
              const auto there = remote::rpc_async<int>("c", "unwrap", value);
              const auto at_owner = remote::rpc_async<int>("b", "unwrap", value);
              for (const auto* one : {&there, &at_owner}) {
                const std::string why = thrown([&] { (void)one->wait(); });
                EXPECT(has(why, "RRef creation of "));
                EXPECT(has(why, "timed out"));
              }
              EXPECT(has(thrown([&] { (void)value.to_here(); }), "timed out"));
            }));
}

TEST_CASE("93: a creation that is lost fails by its deadline, and cannot be passed on") {
  for (const char* owner : {"b", "a"}) {
    CAPTURE(owner);
    World world;
    world.run(2, [owner](int rank) {
      if (name_of(rank) == owner) shmb_test_remote_trouble(current_worker(), kCreate, 1, 0);
      ++words().numbers[1];
      if (rank != 0) {
        EXPECT(serve_until([] { return words().numbers[2] == 1; }));
        return;
      }
      EXPECT(serve_until([] { return words().numbers[1] == 2; }));
      const auto lost = remote::remote<int>(remote::at(owner).within(300ms), "add", 1, 2);
      EXPECT(has(thrown([&] { lost.created().wait(); }), "RRef creation"));
      EXPECT(has(thrown([&] { (void)lost.to_here(); }), "RRef creation"));
      EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("b", "unwrap", lost); }), "RRef creation"));
      EXPECT(remote::remote<int>(owner, "add", 1, 2).to_here() == 3);
      words().numbers[2] = 1;
    });
  }
}

// A ring that fails with an injected EAGAIN is one that nobody hears. The kernel says EAGAIN only of a doorbell that
// has rings already. So no wait of the next case is long.
int unwrap_with_short_waits(const Remote<int>& value) {
  for (;;) try {
      return value.to_here(20ms);
    } catch (const shmbroker::Error& error) {
      if (error.status() != Status::deadline) throw;
    }
}
SHMBROKER_REMOTE_FUNCTION("unwrap_with_short_waits", unwrap_with_short_waits);

TEST_CASE("94: calls to the books that fail at first are made again, and all references are gone at the end") {
  using shmb::fault::Call;
  World world;
  world.run(3, [](int rank) {
    if (rank == 0) {
      for (int first = 1; first <= 8; ++first) {  // of its requests: made, forked, released, whichever comes then
        shmb::fault::inject(Call::send, EAGAIN, first, 3);
        {
          const auto value = remote::remote<int>("b", "add", first, 1);
          const auto unwrapped = remote::rpc_async<int>("c", "unwrap_with_short_waits", value);
          EXPECT(serve_until([&] { return unwrapped.done(); }));
          EXPECT(unwrapped.wait() == first + 1);
        }
      }
      shmb::fault::clear();
      const auto counted = remote::rpc_async<int>("b", "count_words", 1);
      EXPECT(serve_until([&] { return counted.done(); }));
      EXPECT(counted.wait() == 0);  // behind the creations, which are there by now
      words().numbers[1] = 1;
    } else {  // the owner settles, the third one takes and releases
      int first = 0;
      EXPECT(serve_until([&] {
        first = first % 4 + 1;
        shmb::fault::inject(Call::send, EAGAIN, first, 2);
        return words().numbers[1] == 1;
      }));
      EXPECT(words().numbers[1] == 1);
      shmb::fault::clear();
    }
    if (rank == 1) EXPECT(serve_until([] { return remote::counters().owned == 0; }));
  });
}

TEST_CASE("95: while a creation is late, a short to_here() fails by itself, and later all is as it should be") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 1) shmb_test_remote_trouble(current_worker(), kCreate, 0, 2'000'000'000);
    ++words().numbers[1];
    if (rank != 0) {
      EXPECT(serve_until([] { return words().numbers[2] == 1; }));
      EXPECT(serve_until([] { return remote::counters().owned == 0; }));
      return;
    }
    EXPECT(serve_until([] { return words().numbers[1] == 2; }));
    {
      const auto late = remote::remote<int>("b", "add", 1, 2);
      Status status{};
      (void)thrown([&] { (void)late.to_here(1ms); }, &status);
      EXPECT(status == Status::deadline);
      EXPECT(late.to_here() == 3);
    }
    words().numbers[2] = 1;
  });
}

}  // namespace remote_test
