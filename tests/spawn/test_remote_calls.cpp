// SPDX-License-Identifier: Apache-2.0
// Calls, results, errors and futures. The numbers are those of docs/conformance.md.
#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

// A body for worker 0; the others serve until it is through.
std::function<void(int)> first(std::function<void()> body) {
  return [body = std::move(body)](int rank) {
    if (rank == 0) body();
  };
}

}  // namespace

TEST_CASE("70: remote() of functions and classes gives values in order, and local_value() works at their owner") {
  World world;
  world.run(
      2, first([] {
        EXPECT(remote::remote<int>("b", "add", 1, 2).to_here() == 3);
        EXPECT(remote::remote<std::string>("b", "join", std::vector<std::string>{"x", "y"}, "-").to_here() == "x-y");
        auto counter = remote::remote<Counter>(1, "Counter", 40);
        EXPECT(counter.rpc_sync<int>("Counter.add", 2) == 42);
        std::vector<Remote<int>> ten;
        for (int i = 0; i < 10; ++i) ten.push_back(remote::remote<int>("b", "add", i, 100));
        for (int i = 0; i < 10; ++i) EXPECT(ten[static_cast<std::size_t>(i)].to_here() == i + 100);
        auto own = remote::remote<int>("a", "add", 3, 4);
        EXPECT(own.is_owner());
        EXPECT(own.local_value() == 7);
        EXPECT(own.to_here() == 7);
        auto none = remote::remote<void>("b", "nothing");
        none.to_here();
        EXPECT(words().numbers[15] == 1);
      }));
}

TEST_CASE("70b: calls are answered between all pairs of workers, with threads and without") {
  for (const unsigned threads : {0U, 3U}) {
    CAPTURE(threads);
    World world;
    world.run(
        3,
        [](int rank) {
          std::vector<Future<int>> futures;
          for (int i = 0; i < 100; ++i) futures.push_back(remote::rpc_async<int>((rank + i) % 3, "add", i, rank));
          for (int i = 0; i < 100; ++i) EXPECT(futures[static_cast<std::size_t>(i)].wait() == i + rank);
        },
        threads);
  }
}

TEST_CASE("76: methods through a reference change the object at its owner, and references made there are all usable") {
  World world;
  world.run(2, first([] {
              auto counter = remote::remote<Counter>("b", "Counter", 1);
              EXPECT(counter.rpc_sync<int>("Counter.add", 10) == 11);
              EXPECT(counter.rpc_async<int>("Counter.add", 100).wait() == 111);
              EXPECT(counter.remote<int>("Counter.add", 1000).to_here() == 1111);
              EXPECT(counter.rpc_sync<int>("Counter.value") == 1111);
              int sum = 0;
              for (const auto& one : remote::rpc_sync<std::vector<Remote<int>>>(counter.owner(), "three_here")) {
                EXPECT(one.owner_name() == "b");
                sum += one.to_here();
              }
              EXPECT(sum == 6);
            }));
}

TEST_CASE("77: owners compare equal for the same worker and are keys; worker infos go by name and rank") {
  World world;
  world.run(3, first([] {
              const auto a = remote::remote<int>("b", "add", 1, 1), b = remote::remote<int>(1, "add", 1, 1),
                         c = remote::remote<int>("c", "add", 1, 1);
              std::map<remote::WorkerInfo, int> counted;
              for (const auto& one : {a, b, c}) ++counted[one.owner()];
              EXPECT(counted.size() == 2);
              EXPECT(counted[remote::worker_info("b")] == 2);
              EXPECT(remote::worker_info(2).name == "c");
              EXPECT(remote::worker_info().rank == 0);
              EXPECT(remote::worker_infos().size() == 3);
              std::ostringstream text;
              text << remote::worker_info("c");
              EXPECT(text.str() == "WorkerInfo(id=2, name=c)");
              Status status{};
              EXPECT(has(thrown([] { (void)remote::worker_info("nobody"); }, &status), "no worker \"nobody\""));
              EXPECT(status == Status::not_found);
              EXPECT(has(thrown([] { (void)remote::rpc_sync<int>(7, "add", 1, 1); }, &status), "rank 7"));
              EXPECT(status == Status::not_found);
            }));
}

TEST_CASE("78: an exception of the callee is raised with its type, text and origin, also to self") {
  World world;
  world.run(
      2, first([] {
        for (const char* where : {"b", "a"}) {
          auto value = remote::remote<int>(where, "fail_with", "value", "bad words");
          try {
            (void)value.to_here();
            EXPECT(false);
          } catch (const std::invalid_argument& error) {
            EXPECT(has(error.what(), "bad words"));
            const auto& failure = dynamic_cast<const remote::RemoteFailure&>(error);
            EXPECT(failure.origin().name == where);
            EXPECT(failure.type() == "std::invalid_argument");
            EXPECT(failure.text() == "bad words");
          }
          EXPECT(value.state() == Remote<int>::State::failed);
          EXPECT(has(thrown([&] { value.created().wait(); }), "bad words"));
        }
        const auto call = [](const char* kind) { (void)remote::rpc_sync<int>("b", "fail_with", kind, "told"); };
        EXPECT_THROWN(call("range"), std::out_of_range);
        EXPECT_THROWN(call("own"), OwnError);
        EXPECT_THROWN(call("number"), remote::RemoteException);
        EXPECT(has(thrown([&] { call("number"); }), "int: not derived"));
        const std::string long_text(300'000, 'x');
        EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("b", "fail_with", "value", long_text); }), long_text));
        // From a third place the words and the first origin stay.
        auto failing = remote::remote<int>("b", "fail_with", "value", "from b");
        EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("a", "unwrap", failing); }), "from b"));
      }));
}

TEST_CASE("84: the type of a value is asked once, waits for a slow value, and tells the callee's error") {
  World world;
  world.run(2, first([] {
              auto slow = remote::remote<int>("b", "slow_add", 1, 2, 1000);
              EXPECT(slow.type() == "int");
              auto again = slow.type_async();
              EXPECT(again.done());
              EXPECT(again.wait() == "int");
              EXPECT(remote::remote<Counter>("b", "Counter", 1).type() == "remote_test::Counter");
              auto failing = remote::remote<int>("b", "fail_with", "value", "no type");
              EXPECT(has(thrown([&] { (void)failing.type(); }), "no type"));
            }));
}

TEST_CASE("90: timeouts are per call, by default, for later calls only, and 0 is none") {
  World world;
  world.run(
      2, first([] {
        Status status{};
        for (const char* where : {"b", "a"}) {
          EXPECT(
              has(thrown([&] { (void)remote::rpc_sync<int>(remote::at(where).within(100ms), "slow_add", 1, 1, 1000); },
                         &status),
                  "100ms"));
          EXPECT(status == Status::deadline);
          auto future = remote::rpc_async<int>(remote::at(where).within(100ms), "slow_add", 1, 1, 1000);
          (void)thrown([&] { (void)future.wait(); }, &status);
          EXPECT(status == Status::deadline);
          (void)thrown([&] { (void)future.wait(); }, &status);  // final
          EXPECT(status == Status::deadline);
        }
        auto patient = remote::rpc_async<int>("b", "slow_add", 1, 1, 500);
        remote::set_timeout(100ms);
        (void)thrown([&] { (void)remote::rpc_sync<int>("b", "slow_add", 1, 1, 1000); }, &status);
        EXPECT(status == Status::deadline);
        EXPECT(patient.wait() == 2);
        EXPECT(remote::rpc_sync<int>(remote::at("b").within(30s), "slow_add", 1, 1, 300) == 2);
        EXPECT(remote::rpc_sync<int>(remote::at("b").within(Timeout::forever()), "slow_add", 1, 1, 300) == 2);
        for (const Timeout none : {Timeout::no_wait(), Timeout(0ms), Timeout(-3s)}) {
          (void)thrown([&] { (void)remote::rpc_sync<int>(remote::at("b").within(none), "add", 1, 1); }, &status);
          EXPECT(status == Status::invalid);
          (void)thrown([&] { remote::set_timeout(none); }, &status);
          EXPECT(status == Status::invalid);
        }
        remote::set_timeout({});
        EXPECT(remote::rpc_sync<int>("b", "slow_add", 1, 1, 300) == 2);
      }));
}

TEST_CASE("96: shutdown waits for calls in flight and for chains of calls that no thread waits for") {
  World world;
  world.run(3, [](int rank) {
    if (rank != 0) return;
    for (int i = 0; i < 1000; ++i) (void)remote::rpc_async<void>(1 + i % 2, "nothing");
    for (int i = 0; i < 20; ++i) (void)remote::rpc_async<int>(1 + i % 2, "slow_add", i, i, 20);
    (void)remote::rpc_async<void>(1, "hop", 19);
  });
  CHECK(words().numbers[15] == 1000);
  CHECK(words().numbers[0] == 20);
}

TEST_CASE("97: futures have callbacks, chains and errors, and wait_all raises the first error early") {
  World world;
  world.run(2, first([] {
              auto chain = remote::rpc_async<int>("b", "add", 0, 0);
              for (int i = 0; i < 20; ++i)
                chain = chain.then([](const Future<int>& before) { return before.wait() + 1; });
              EXPECT(chain.wait() == 20);
              auto bad = remote::rpc_async<int>("b", "add", 1, 1).then([](const Future<int>&) -> int {
                throw std::domain_error("in a callback");
              });
              EXPECT(has(thrown([&] { (void)bad.wait(); }), "in a callback"));
              auto after_bad =
                  bad.then([](const Future<int>& before) { return thrown([&] { (void)before.wait(); }).size(); });
              EXPECT(after_bad.wait() == std::string("in a callback").size());
              int called = 0;
              chain.then([&](const Future<int>& done) { called = done.wait(); });
              EXPECT(called == 20);
              const auto all = remote::wait_all(
                  std::vector{remote::rpc_async<int>("b", "add", 1, 0), remote::rpc_async<int>("b", "add", 2, 0)});
              EXPECT(all == std::vector<int>({1, 2}));
              Future<int> never;
              EXPECT(has(thrown([&] {
                           (void)remote::wait_all(
                               std::vector{never, remote::rpc_async<int>("b", "fail_with", "value", "early")});
                         }),
                         "early"));
              Future<int> own;
              auto after = own.then([](const Future<int>& before) { return before.wait() * 2; });
              own.set_result(21);
              EXPECT(after.wait() == 42);
              // A function that gives a future is answered when that is done, and its worker serves meanwhile.
              EXPECT(remote::rpc_sync<int>("b", "add_later", "a", 1, 2) == 4);
            }));
}

TEST_CASE("Arguments and results of any size arrive; from 64 KiB on they are mapped") {
  World world;
  world.run(2, first([] {
              for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{5000},
                                             std::size_t{65536}, std::size_t{65537}, std::size_t{3'000'000}}) {
                remote::Bytes in(size);
                for (std::size_t i = 0; i < size; ++i) in.data()[i] = static_cast<std::byte>(i % 100);
                const auto out = remote::rpc_sync<remote::Bytes>("b", "doubled", in);
                EXPECT(out.size() == size);
                EXPECT(out.is_region() == (size > 65536));
                for (std::size_t i = 0; i < size; ++i) EXPECT(static_cast<std::size_t>(out.data()[i]) == i % 100 * 2);
                EXPECT(remote::rpc_sync<std::string>("b", "repeated", size) == std::string(size, 'r'));
                EXPECT(remote::rpc_sync<remote::Bytes>("a", "doubled", in).size() == size);
              }
              // Results that are kept while others come: each has memory of its own, whatever it lies in.
              std::vector<Future<std::string>> all;
              for (std::size_t size : {std::size_t{300'000}, std::size_t{1'000'000}, std::size_t{2'200'000}})
                for (int i = 0; i < 24; ++i)
                  all.push_back(remote::rpc_async<std::string>("b", "repeated", size + static_cast<std::size_t>(i)));
              for (std::size_t i = 0; i < all.size(); ++i) {
                const std::size_t base = i < 24 ? 300'000 : i < 48 ? 1'000'000 : 2'200'000;
                EXPECT(all[i].wait() == std::string(base + i % 24, 'r'));
              }
              // Memory that is fetched twice is one.
              auto value = remote::remote<remote::Bytes>("b", "doubled", remote::Bytes(std::size_t{1} << 20));
              auto one = value.to_here(), two = value.to_here();
              EXPECT(one.is_region());
              one.data()[5] = std::byte{9};
              EXPECT(two.data()[5] == std::byte{9});
            }));
}

TEST_CASE(
    "A wait without a time-out ends: with the call's own limit, or with that of calls where it waits for no call") {
  World world;
  world.run(2, first([] {
              remote::set_timeout(200ms);
              Status status{};
              const Future<int> own;
              EXPECT(!thrown([&] { (void)own.wait(); }, &status).empty());
              EXPECT(status == Status::deadline);
              EXPECT(!thrown([&] { (void)remote::wait_all(std::vector{own}); }, &status).empty());
              EXPECT(status == Status::deadline);
              const auto next = own.then([](const Future<int>& before) { return before.wait(); });
              EXPECT(!thrown([&] { (void)next.wait(); }, &status).empty());
              EXPECT(status == Status::deadline);
              // The timeout of the call counts, not the default one, also further on.
              const auto patient = remote::at("b").within(60s);
              EXPECT(remote::rpc_sync<int>(patient, "slow_add", 1, 2, 500) == 3);
              const auto sum = remote::rpc_async<int>(patient, "slow_add", 1, 2, 500);
              EXPECT(sum.then([](const Future<int>& before) { return before.wait() + 1; }).wait() == 4);
              EXPECT(!thrown([] { (void)remote::rpc_sync<int>("b", "slow_add", 1, 2, 2000); }, &status).empty());
              EXPECT(status == Status::deadline);
              remote::set_timeout({});
            }));
}

TEST_CASE("Names of workers, functions and methods may be parts of longer texts") {
  World world;
  world.run(2, first([] {
              const std::string_view all = "b add Counter Counter.add";
              const std::string_view to = all.substr(0, 1), add = all.substr(2, 3), method = all.substr(14, 11);
              EXPECT(remote::rpc_sync<int>(to, add, 1, 2) == 3);
              EXPECT(remote::rpc_async<int>(to, add, 1, 2).wait() == 3);
              EXPECT(remote::remote<int>(remote::at(to).within(30s), add, 1, 2).to_here() == 3);
              const auto counter = remote::remote<Counter>(to, all.substr(6, 7), 40);
              EXPECT(counter.rpc_sync<int>(method, 2) == 42);
              EXPECT(counter.within(30s).rpc_async<int>(method, 1).wait() == 43);
            }));
}

TEST_CASE("Bad calls are refused in words, and leave nothing") {
  World world;
  world.run(
      2, first([] {
        Status status{};
        for (const char* where : {"a", "b"}) {
          try {
            (void)remote::rpc_sync<int>(where, "unheard_of", 1);
            EXPECT(false);
          } catch (const remote::NoFunction& error) {
            EXPECT(error.status() == Status::no_function);
            EXPECT(has(error.what(), "no function \"unheard_of\""));
            EXPECT(error.origin().name == where);
            EXPECT(has(error.text(), "add_later"));  // what there is
          }
        }
        EXPECT(has(thrown([] { (void)remote::remote<int>("b", "unheard_of").to_here(); }, &status),
                   "no function \"unheard_of\""));
        EXPECT(status == Status::no_function);
        // Further on it is an exception of the function that asked.
        EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "asks_for_nothing"); }, &status), "unheard_of"));
        EXPECT(status == Status::raised);
        EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "add", 1); }), "takes 2 arguments, 1 were given"));
        EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "add", 1, "two"); }),
                   "argument 2: expected int, found string"));
        EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "repeated", 3); }), "expected int, found string"));
        EXPECT(has(thrown([] { (void)remote::rpc_sync<int>("b", "Counter", 3); }), "only be called by remote()"));
        EXPECT(has(thrown([] { (void)remote::remote<int>("b", "Counter", 3).to_here(); }), "cannot be fetched"));
        EXPECT(has(thrown([] { join(0, 2); }, &status), "in a world already"));
        EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);
        EXPECT(remote::counters().pending_calls == 0);
      }));
}

}  // namespace remote_test
