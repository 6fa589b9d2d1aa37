// SPDX-License-Identifier: Apache-2.0
// Ranks that end well and ranks that do not: who is blamed, with which words, and that nothing is left. The numbers in
// the names are those of docs/conformance.md. The leak guard looks at descriptors, mappings and children after each.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <set>
#include <thread>

#include "spawn/ranks/stack_text.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/ranks.hpp"

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

namespace {

static_assert(std::is_same_v<SpawnContext, ProcessContext>);

template <class Body>
void with_each_method(Body&& body) {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    body(method);
  }
}

template <class Exception, class... A>
std::optional<Exception> caught(const std::string& function, const SpawnOptions& options, const A&... arguments) {
  try {
    (void)spawn(function, options, arguments...);
  } catch (const Exception& exception) {
    return exception;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("29, 31: ranks that return are a success, each has its number, and results come back") {
  with_each_method([](StartMethod method) {
    auto context = spawn("twice", ranks_of(method, 2), 10, "text");
    CHECK(context.join());
    std::set<int> seen;
    for (int rank = 0; rank < 2; ++rank) seen.insert(context.result<int>(rank));
    CHECK(seen == std::set<int>{24, 25});
    CHECK(context.pids().size() == 2);
    CHECK(context.failures().empty());
  });
}

TEST_CASE("anything that converts to a plain function can be registered: a noexcept function, a lambda") {
  with_each_method([](StartMethod method) {
    CHECK(spawn("never_throws", ranks_of(method, 2)).result<int>(1) == 8);
    CHECK(spawn("lambda", ranks_of(method, 1), 5).result<int>(0) == 5);
  });
}

TEST_CASE("a result that is none, or of another type, is an error with the rank, what was asked and what is there") {
  auto context = spawn("twice", ranks_of(StartMethod::spawn, 2), 10, "text");
  CHECK_THROWS_WITH_AS((void)context.result<bool>(1), "the result of rank 1: expected bool, found integer",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)context.result<Region>(0),
                       "the result of rank 0: expected shmbroker::Region, found integer", std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)spawn("nothing", ranks_of(StartMethod::spawn, 1)).result<int>(0),
                       "the result of rank 0: expected int, found nothing: its function returns void, or has not "
                       "returned",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)spawn("give_bare", ranks_of(StartMethod::spawn, 1)).result<int>(0),
                       "the result of rank 0: expected int, found bytes that are no value of shmbroker::spawn: a "
                       "program in C or another language gave them",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)context.result<int>(2), doctest::Contains("no local rank 2"), Error);
}

TEST_CASE("30: join may be called again and again, from several threads, and tells the same") {
  with_each_method([](StartMethod method) {
    auto context = spawn("raise_error", ranks_of(method, 2, false), 5, 0, 50);
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { good += context.join(); });
    for (auto& thread : threads) thread.join();
    CHECK(good == 3);
    CHECK(context.join());
    CHECK(context.join(Timeout::no_wait()));
  });
}

TEST_CASE("32, 38: the exception of a rank arrives with type, text and place, and survives msgpack") {
  with_each_method([](StartMethod method) {
    for (int who = 0; who < 2; ++who) {
      auto thrown = caught<ProcessRaisedException>("raise_error", ranks_of(method, 2), who, 0, 60'000);
      REQUIRE(thrown.has_value());
      const std::string text = thrown->what(), rank = std::to_string(who);
      CHECK(text.starts_with("rank " + rank + " failed: std::domain_error: legitimate exception from process " + rank +
                             "\nIn function \"raise_error\" of rank " + rank + " of 2:\n"));
      CHECK(text.ends_with("legitimate exception from process " + rank));
      CHECK(thrown->error_index() == who);
      CHECK(thrown->failure().type == "std::domain_error");
      CHECK(thrown->failure().text == "legitimate exception from process " + rank);
      CHECK(thrown->failure().trace.find("raise_error") != std::string::npos);
      REQUIRE(thrown->failures().size() == 2);
      CHECK(thrown->failures()[1].ended_by_us);
      try {
        rethrow_msgpack(thrown->to_msgpack());
      } catch (const ProcessRaisedException& again) {
        CHECK(again.failures() == thrown->failures());
        CHECK(std::string(again.what()) == text);
      }
    }
  });
}

TEST_CASE("38: the exception of a rank that has exited, or died of a signal, survives msgpack with all fields") {
  with_each_method([](StartMethod method) {
    for (const int signal : {0, SIGKILL, 37}) {
      auto thrown = signal == 0 ? caught<ProcessExitedException>("exit_with", ranks_of(method, 2), 1, 12, 60'000)
                                : caught<ProcessExitedException>("signal_self", ranks_of(method, 2), 1, signal);
      REQUIRE(thrown.has_value());
      std::optional<ProcessExitedException> again;
      try {
        rethrow_msgpack(thrown->to_msgpack());
      } catch (const ProcessExitedException& same) {
        again = same;
      }
      REQUIRE(again.has_value());
      CHECK(again->failures() == thrown->failures());
      CHECK(std::string(again->what()) == thrown->what());
      CHECK(again->exit_code() == (signal == 0 ? 12 : -signal));
      CHECK(again->signal_name() == thrown->signal_name());
      CHECK(again->error_index() == 1);
      CHECK(again->error_pid() == thrown->error_pid());
    }
  });
}

TEST_CASE("the outcome says whether memory was dumped, as the kernel does") {
  const harness::TempDir folder;
  auto child = ::fork();
  if (child == 0) {
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    rlimit now{};
    ::getrlimit(RLIMIT_CORE, &now);
    now.rlim_cur = now.rlim_max;
    if (::setrlimit(RLIMIT_CORE, &all) != 0) ::setrlimit(RLIMIT_CORE, &now);
    if (::chdir(folder.path().c_str()) != 0) ::_exit(1);
    ::signal(SIGABRT, SIG_DFL);
    ::raise(SIGABRT);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  with_each_method([&](StartMethod method) {
    auto options = ranks_of(method, 1);
    options.directory = folder.path();
    auto thrown = caught<ProcessExitedException>("dump_core", options);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().signal == SIGABRT);
    CHECK(thrown->failure().core == (WCOREDUMP(status) != 0));
  });
}

TEST_CASE("33: where both raise, one is the cause and both are listed unless one was ended first") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_error", ranks_of(method, 2), -1, 0, 0);
    REQUIRE(thrown.has_value());
    CHECK(std::string(thrown->what())
              .ends_with("legitimate exception from process " + std::to_string(thrown->error_index())));
    CHECK(thrown->failures().size() <= 2);
  });
}

TEST_CASE("34, 37, 43, 46: a death by signal is named, real-time ones and SIGINT too") {
  with_each_method([](StartMethod method) {
    const std::pair<int, std::string> all[] = {{SIGABRT, "rank 0 terminated with signal SIGABRT"},
                                               {SIGKILL, "rank 0 terminated with signal SIGKILL"},
                                               {SIGINT, "rank 0 terminated with signal SIGINT"},
                                               {37, "rank 0 terminated with signal 37 (SIGRTMIN+3)"}};
    for (const auto& [signal, text] : all) {
      auto thrown = caught<ProcessExitedException>("signal_self", ranks_of(method, 2), 0, signal);
      REQUIRE(thrown.has_value());
      CHECK(thrown->what() == text);
      CHECK(thrown->exit_code() == -signal);
      CHECK(thrown->signal_name() == (signal == 37 ? "SIGRTMIN+3" : text.substr(text.rfind(' ') + 1)));
    }
  });
}

TEST_CASE("35, 50: an exit code is named, the others are ended, and nothing is left") {
  with_each_method([](StartMethod method) {
    Witness witness;
    auto thrown = caught<ProcessExitedException>("exit_with", ranks_of(method, 2), 0, 123, 60'000);
    REQUIRE(thrown.has_value());
    CHECK(std::string(thrown->what()) == "rank 0 terminated with exit code 123");
    CHECK(thrown->exit_code() == 123);
    CHECK(thrown->failure().pid > 0);
    REQUIRE(thrown->failures().size() == 2);
    CHECK(thrown->failures()[1].signal == SIGTERM);
    CHECK(witness.all_gone());
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  });
}

TEST_CASE("36: a failure that comes after another rank has ended well is reported") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_last", ranks_of(method, 2));
    REQUIRE(thrown.has_value());
    CHECK(thrown->error_index() == 1);
    CHECK(thrown->failures().size() == 1);
  });
}

TEST_CASE("37: a rank that is ended from outside has failed, and exit code 12 is exit code 12") {
  with_each_method([](StartMethod method) {
    auto context = spawn("stay", ranks_of(method, 1, false), false, false);
    REQUIRE(context.pids().size() == 1);
    CHECK_FALSE(context.join(Timeout::no_wait()));
    ::kill(context.pids()[0], SIGTERM);
    CHECK_THROWS_AS(context.join(), ProcessExitedException);
    CHECK_THROWS_WITH_AS(context.join(), "rank 0 terminated with signal SIGTERM", ProcessExitedException);
    auto thrown = caught<ProcessExitedException>("exit_with", ranks_of(method, 1), 0, 12, 0);
    REQUIRE(thrown.has_value());
    CHECK(thrown->exit_code() == 12);
  });
}

TEST_CASE("40: with a voluntary grace, of join or of the options, the others may end by themselves") {
  with_each_method([](StartMethod method) {
    for (const bool told : {true, false}) {
      CAPTURE(told);
      Witness witness;
      auto options = ranks_of(method, 2, false);
      options.environment = {witness.ready_variable()};
      auto context = spawn("outlive", options, told ? 200 : 60'000);
      REQUIRE(witness.wait_ready(2));
      CHECK_FALSE((told ? context.join(1ms, 60s) : context.join(1ms)));
      ::kill(context.pids()[0], SIGKILL);
      CHECK_THROWS_AS(context.join(), ProcessExitedException);
      CHECK(context.failures().size() == (told ? 1 : 2));
      CHECK(context.failures().back().ended_by_us == !told);
    }
    auto options = ranks_of(method, 2);
    options.voluntary = 60s;
    auto thrown = caught<ProcessExitedException>("exit_with", options, 0, 123, 300);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failures().size() == 1);
  });
}

TEST_CASE("44: join returns at its deadline, though a rank that ignores SIGTERM has most of its grace left") {
  with_each_method([](StartMethod method) {
    Witness witness;
    auto options = ranks_of(method, 2, false);
    options.environment = {witness.ready_variable()};
    options.grace = 1h;
    auto context = spawn("stay", options, true, true);
    REQUIRE(witness.wait_ready(2));
    ::kill(context.pids()[1], SIGKILL);
    CHECK(*context.try_join(100ms) == RanksState::running);
    context.end(true);
    CHECK_THROWS_AS(context.join(), ProcessExitedException);
    CHECK(witness.all_gone());
  });
}

TEST_CASE("41: a rank that ignores SIGTERM is killed after the grace") {
  with_each_method([](StartMethod method) {
    Witness witness;
    auto options = ranks_of(method, 2, false);
    options.environment = {witness.ready_variable()};
    options.grace = 200ms;
    auto context = spawn("stay", options, true, true);
    REQUIRE(witness.wait_ready(2));
    ::kill(context.pids()[1], SIGKILL);
    try {
      (void)context.join();
      FAIL("it must throw");
    } catch (const ProcessExitedException& thrown) {
      CHECK(thrown.error_index() == 1);
      REQUIRE(thrown.failures().size() == 2);
      CHECK(thrown.failures()[1].signal == SIGKILL);
      CHECK(thrown.failures()[1].ended_by_us);
    }
    CHECK(witness.all_gone());
  });
}

TEST_CASE("42: the fork server prepares itself once for all ranks") {
  auto context = spawn("preloaded", ranks_of(StartMethod::forkserver, 4));
  const auto pids = context.pids();
  for (int rank = 0; rank < 4; ++rank)
    CHECK(context.result<std::string>(rank) == "1 " + std::to_string(pids[static_cast<std::size_t>(rank)]));
}

TEST_CASE("42: ranks are started in their order") {
  with_each_method([](StartMethod method) {
    const auto pids = spawn("nothing", ranks_of(method, 4)).pids();
    int descents = 0;  // numbers of processes begin again somewhere
    for (std::size_t i = 0; i < pids.size(); ++i) descents += pids[(i + 1) % pids.size()] < pids[i];
    CHECK(descents == 1);
  });
}

TEST_CASE("a nested exception arrives with its own type and text, and with the chain of what it was thrown from") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_nested", ranks_of(method, 2), 4);
    REQUIRE(thrown.has_value());
    const RankFailure& failure = thrown->failure();
    CHECK(failure.type == "std::range_error");
    CHECK(failure.text == "at level 4");
    REQUIRE(failure.causes.size() == 4);
    CHECK(failure.causes[0].type.ends_with("NotDerived"));
    CHECK(failure.causes[0].text == "not derived from std::exception");
    CHECK(failure.causes[1] == RaisedCause{"std::range_error", "at level 2"});
    CHECK(failure.causes[3] == RaisedCause{"std::invalid_argument", "the root"});
    const std::string text = thrown->what();
    CHECK(text.find("failed: std::range_error: at level 4\ncaused by ") != text.npos);
    CHECK(text.find("\ncaused by std::range_error: at level 1\ncaused by std::invalid_argument: the root\n") !=
          text.npos);
    CHECK(text.ends_with("std::range_error: at level 4"));
    try {
      rethrow_msgpack(thrown->to_msgpack());
    } catch (const ProcessRaisedException& again) {
      CHECK(again.failures() == thrown->failures());
    }
  });
  // A chain without end is cut, and the exception arrives.
  auto thrown = caught<ProcessRaisedException>("raise_nested", ranks_of(StartMethod::spawn, 1), 300);
  REQUIRE(thrown.has_value());
  CHECK(thrown->failure().text == "at level 300");
  CHECK(thrown->failure().causes.size() == 64);
}

TEST_CASE("a number that does not fit is named, with what would") {
  auto options = ranks_of(StartMethod::spawn, 1);
  const auto text_of_failure = [&](auto small, auto positive) {
    auto thrown = caught<ProcessRaisedException>("take_small", options, small, positive);
    return thrown ? thrown->failure().text : "it fitted";
  };
  CHECK(text_of_failure(1, 2) == "it fitted");
  CHECK(text_of_failure(3'000'000'000, 2) ==
        "function \"take_small\", argument 1: expected signed char, found integer 3000000000, which does not fit: -128 "
        "to 127");
  CHECK(text_of_failure(1, -2) ==
        "function \"take_small\", argument 2: expected unsigned int, found integer -2, which does not fit: 0 to "
        "4294967295");
  CHECK_THROWS_WITH_AS(
      (void)spawn("give_large", options).result<int>(0),
      "the result of rank 0: expected int, found integer 3000000000, which does not fit: -2147483648 to "
      "2147483647",
      std::invalid_argument);
}

TEST_CASE("rank 5 is called rank 5, by its number among all hosts' ranks") {
  auto options = ranks_of(StartMethod::spawn, 2);
  options.shards = 3, options.shard = 2, options.master_port = 12345;
  auto thrown = caught<ProcessRaisedException>("raise_error", options, 5, 0, 60'000);
  REQUIRE(thrown.has_value());
  CHECK(thrown->error_index() == 5);
  CHECK(std::string(thrown->what()).starts_with("rank 5 failed: "));
  CHECK_THROWS_WITH_AS((void)spawn("nothing", options).result<int>(1),
                       doctest::Contains("the result of rank 5: expected int"), std::invalid_argument);
}

#if SHMBROKER_THROW_POINTS
TEST_CASE("a stack has the program's own frames, and none of std or of the library") {
  with_each_method([](StartMethod method) {
    for (const char* function : {"raise_below", "raise_at"}) {
      auto thrown = std::string(function) == "raise_at"
                        ? caught<ProcessRaisedException>(function, ranks_of(method, 1), std::vector<int>{1})
                        : caught<ProcessRaisedException>(function, ranks_of(method, 1), 2);
      REQUIRE(thrown.has_value());
      const std::string& trace = thrown->failure().trace;
      CAPTURE(trace);
      for (const char* foreign :
           {" std::", " shmbroker::", "libstdc++", "libc.so", " main in", " _start in", "spawn_child"})
        CHECK(trace.find(foreign) == trace.npos);
      CHECK(trace.find("  #0 ") != trace.npos);
    }
  });
}

TEST_CASE("the scopes of a function are found in its demangled name") {
  using shmb::spawn::function_in;
  CHECK(function_in("f(int)") == "f");
  CHECK(function_in("std::vector<int> a::f<std::less<int> >(int)") == "a::f<std::less<int> >");
  CHECK(function_in("(anonymous namespace)::f(std::string)") == "(anonymous namespace)::f");
  CHECK(function_in("void std::__invoke_impl<int, void (*)(int)>(x)") == "std::__invoke_impl<int, void (*)(int)>");
  CHECK(function_in("f") == "f");
  CHECK(function_in("cooperator(int, char)") == "cooperator");
  CHECK(function_in("void a::my_operator<int>(x)") == "a::my_operator<int>");
  CHECK(function_in("int operators::f(int)") == "operators::f");
  CHECK(function_in("bool a::operator()(int) const") == "a::operator()(int) const");
  CHECK(function_in("a::operator bool() const") == "a::operator bool() const");
}

TEST_CASE("a failure carries the stack of what was thrown, by the names that the program exports") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_below", ranks_of(method, 1), 2);
    REQUIRE(thrown.has_value());
    const std::string& trace = thrown->failure().trace;
    CAPTURE(trace);
    CHECK(trace.starts_with("In function \"raise_below\" of rank 0 of 1:\n"));
    std::size_t frames = 0;
    for (std::size_t at = 0; (at = trace.find("function_that_calls_what_throws(int)", at)) != trace.npos; ++at)
      ++frames;
    CHECK(frames == 3);  // and no frame of what was thrown and caught further in
    CHECK(thrown->failure().text == "at depth 0");
  });
}
#endif

TEST_CASE("45: a text of 300 kB arrives whole, one of 20 MB with its end, and that it was cut") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_long", ranks_of(method, 1), 300'000);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().text == "begin" + std::string(300'000, 'x') + "end");
    CHECK_FALSE(thrown->failure().cut);
  });
  auto thrown = caught<ProcessRaisedException>("raise_long", ranks_of(StartMethod::spawn, 1), 20'000'000);
  REQUIRE(thrown.has_value());
  CHECK(thrown->failure().cut);
  CHECK(thrown->failure().text.ends_with("xend"));
}

TEST_CASE("49: of two failures 5 ms apart the earlier is named first, and both are listed") {
  with_each_method([](StartMethod method) {
    auto options = ranks_of(method, 2);
    options.voluntary = 60s;
    auto thrown = caught<ProcessRaisedException>("raise_apart", options, 5);
    REQUIRE(thrown.has_value());
    CHECK(thrown->error_index() == 1);
    REQUIRE(thrown->failures().size() == 2);
    CHECK(thrown->failures()[1].rank == 0);
    CHECK_FALSE(thrown->failures()[1].ended_by_us);
    CHECK(thrown->failures()[0].time_ns <= thrown->failures()[1].time_ns);
  });
}

TEST_CASE("a rank that exits with 0 before its function is through has failed") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessExitedException>("exit_with", ranks_of(method, 1), 0, 0, 0);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().kind == FailureKind::unfinished);
    CHECK(std::string(thrown->what()).starts_with("rank 0 exited with code 0 without finishing its function"));
  });
}

TEST_CASE("a rank that closes all its descriptors is a failure with the reason, and not a hang") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessExitedException>("close_everything", ranks_of(method, 1), 0);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().kind == FailureKind::unfinished);
    CHECK(std::string(thrown->what()).find("had closed all its descriptors") != std::string::npos);
    CHECK(caught<ProcessExitedException>("close_everything", ranks_of(method, 1), -1).has_value());
  });
}

TEST_CASE("a thrown object need not be an exception, and an unknown function or wrong arguments say what is wrong") {
  with_each_method([](StartMethod method) {
    auto thrown = caught<ProcessRaisedException>("raise_int", ranks_of(method, 1));
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().type == "int");
    thrown = caught<ProcessRaisedException>("absent", ranks_of(method, 1));
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().text.find("no function \"absent\" is registered in this program") == 0);
    thrown = caught<ProcessRaisedException>("named_twice", ranks_of(method, 1));
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().text == "two functions are registered as \"named_twice\"");
    thrown = caught<ProcessRaisedException>("twice", ranks_of(method, 1), "ten", "text");
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().text == "function \"twice\", argument 1: expected int, found string");
    thrown = caught<ProcessRaisedException>("twice", ranks_of(method, 1), 10);
    REQUIRE(thrown.has_value());
    CHECK(thrown->failure().text == "function \"twice\" takes 2 arguments besides the rank, 1 were given");
  });
}

TEST_CASE("a program that never reaches spawn_child is reported by name, and so is one that just exits") {
  for (const StartMethod method : {StartMethod::spawn, StartMethod::forkserver}) {
    CAPTURE(name_of(method));
    auto options = ranks_of(method, 2, false);
    options.command = {"ranks", "late"};
    options.start_timeout = 200ms;
    std::string told;
    try {
      auto context = spawn("nothing", options);
      (void)context.join();
    } catch (const std::exception& error) {
      told = error.what();
    }
    CHECK(told.find("never reached spawn_child within 200ms") != std::string::npos);
    CHECK(told.find(SHMB_TEST_RANKS) != std::string::npos);
    options.command = {"ranks", "never"};
    options.start_timeout = 60s;
    told.clear();
    try {
      auto context = spawn("nothing", options);
      (void)context.join();
    } catch (const std::exception& error) {
      told = error.what();
    }
    CHECK(told.find(method == StartMethod::spawn ? "never reached spawn_child"
                                                 : "the fork server exited with code 0") != std::string::npos);
  }
}

TEST_CASE("wrong options and programs are refused with a sentence, and nothing is left") {
  const auto refusal = [](const SpawnOptions& options) -> std::string {
    auto started = try_start_processes("nothing", options);
    return started ? "it was started" : started.error().what();
  };
  with_each_method([&](StartMethod method) {
    for (const int nprocs : {0, -1, 1025})
      CHECK(refusal(ranks_of(method, nprocs)) == "nprocs is " + std::to_string(nprocs) + ": it must be 1 to 1024");
    auto options = ranks_of(method, 1);
    options.shard = 2, options.shards = 2;
    CHECK(refusal(options).find("shard 2 of 2") == 0);
    options = ranks_of(method, 1);
    options.directory = "/nonexistent";
    CHECK(refusal(options).find("cannot enter the directory '/nonexistent'") == 0);
    options = ranks_of(method, 1);
    options.environment = {"=x"};
    CHECK(refusal(options).find("an environment variable cannot be called") == 0);
    if (method == StartMethod::fork) return;
    options = ranks_of(method, 2);
    options.program = "/nonexistent/program";
    CHECK(refusal(options).find("cannot run '/nonexistent/program': No such file") == 0);
    options.program = "/etc/passwd";
    CHECK(refusal(options).find("cannot run '/etc/passwd': Permission denied") == 0);
    options = ranks_of(method, 1);
    options.environment = {"BIG=" + std::string(200'000, 'x')};  // more than one string may have (execve(2))
    CHECK(refusal(options).find("arguments and environment together are longer than the kernel takes") !=
          std::string::npos);
  });
  ::setenv("SHMBROKER_SPAWNER", "relative", 1);
  auto options = ranks_of(StartMethod::spawn, 1);
  ::setenv("SHMBROKER_SPAWNER", "/nonexistent/spawner", 1);
  CHECK(refusal(options).find("SHMBROKER_SPAWNER=/nonexistent/spawner: No such file") == 0);
}

TEST_CASE("a parent whose environment is too large for the kernel gets an error, and nothing is left") {
  auto parent = harness::Child::run([]() -> int {
    // More than one quarter of the stack's limit has room for (execve(2)).
    rlimit stack{};
    ::getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = std::min<rlim_t>(stack.rlim_max, 8 << 20);
    ::setrlimit(RLIMIT_STACK, &stack);
    for (int i = 0; i < 40; ++i) ::setenv(("BIG" + std::to_string(i)).c_str(), std::string(120'000, 'x').c_str(), 1);
    for (const StartMethod method : {StartMethod::spawn, StartMethod::forkserver}) {
      auto started = try_start_processes("nothing", ranks_of(method, 1));
      if (started || started.error().status() != Status::limit) return 1;
      if (std::string(started.error().what()).find("longer than the kernel takes") == std::string::npos) return 2;
    }
    // It executes nothing.
    return ::waitpid(-1, nullptr, WNOHANG) == -1 && spawn("nothing", ranks_of(StartMethod::fork, 1)).join() ? 0 : 3;
  });
  CHECK(parent.wait() == 0);
}

TEST_CASE("a context that goes waits for its ranks, and a daemonic one ends them") {
  with_each_method([](StartMethod method) {
    Witness witness;
    auto options = ranks_of(method, 2, false);
    options.environment = {witness.ready_variable()};
    {
      auto context = spawn("say_late", options);
    }
    CHECK(witness.wait_ready(2));
    options.environment.clear();
    options.daemon = true;
    {
      auto context = spawn("stay", options, false, true);
    }
    CHECK(witness.all_gone());
  });
}

TEST_CASE("a host that reaps every child by itself harms nothing") {
  with_each_method([](StartMethod method) {
    auto context = spawn("raise_error", ranks_of(method, 1, false), 5, 0, 20);
    CHECK(::waitpid(-1, nullptr, 0) > 0);
    CHECK(context.join());
  });
}
