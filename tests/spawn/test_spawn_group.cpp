// SPDX-License-Identifier: Apache-2.0
// Ranks and a broker: regions, tickets, pools and queues as arguments, the group of the ranks, commands as ranks, and
// what ranks ask of each other.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <optional>
#include <set>
#include <sstream>

#include "client/face/shmbroker_pool.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/ranks.hpp"

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

namespace {

SpawnOptions with_broker(const harness::BrokerFixture& broker, StartMethod method, int nprocs, bool join = true) {
  auto options = ranks_of(method, nprocs, join);
  options.no_group = false;
  options.socket = broker.socket();
  return options;
}

}  // namespace

TEST_CASE("regions travel as arguments: written by all ranks, or read, or as a ticket") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    ConnectOptions connect;
    connect.socket = broker.socket();
    auto session = Session::connect(connect);
    auto region = session.create(4096);
    spawn("count_region", with_broker(broker, method, 3), region);
    CHECK(region.as_span<int>()[0] == 1);
    CHECK(region.as_span<int>()[2] == 3);
    auto published = std::move(region).publish();
    auto context = spawn("read_region", with_broker(broker, method, 2), published);
    CHECK(context.result<int>(0) == 1);
    CHECK(context.result<int>(1) == 2);
    CHECK(spawn("read_ticket", with_broker(broker, method, 1), published.ticket()).result<int>(0) == 1);
  }
}

TEST_CASE("names, keys and texts of options may be parts of longer texts") {
  const std::string_view all = "name_parts of /tmp twice";
  for (const StartMethod method : kMethods) {
    CAPTURE(std::string(name_of(method)));
    auto options = ranks_of(method, 2);
    options.directory = all.substr(14, 4);
    const auto context = spawn(all.substr(0, 10), options, all.substr(11, 2));
    CHECK(context.result<std::string>(0) == "of");
    CHECK(context.result<std::string>(1) == "of");
    CHECK(spawn(all.substr(19), options, 3, all.substr(11, 2)).result<int>(1) == 3 * 2 + 1 + 2);
  }
}

TEST_CASE("tickets that ranks have not used hold no region when they have ended, or could not be started") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  const auto tickets = [&](const Session& session, const Region& region) { return session.stat(region.id()).tickets; };
  for (const StartMethod method : kMethods) {
    CAPTURE(std::string(name_of(method)));
    auto session = Session::connect({.socket = broker.socket()});
    auto region = session.create(4096);
    auto options = with_broker(broker, method, 2, false);
    {
      // More arguments than the function takes: nobody attaches the last.
      auto context = spawn("count_region", options, region, region);
      CHECK(tickets(session, region) > 0);
      CHECK_THROWS_AS(context.join(), ProcessRaisedException);
      CHECK(tickets(session, region) == 0);
    }
    options.directory = "/nonexistent";
    CHECK_FALSE(try_start_processes("count_region", options, region));
    CHECK(tickets(session, region) == 0);
    options.directory.clear();
    {
      options.daemon = true;
      auto never_taken = try_start_processes("count_region", options, region, region);
      REQUIRE(never_taken);
    }
    CHECK(tickets(session, region) == 0);
  }
}

TEST_CASE("a broker that does not answer delays no revoke of tickets, and gets all of them later") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  auto session = Session::connect({.socket = broker.socket()});
  auto region = session.create(4096);
  shmbroker::detail::Lent lent;
  for (int i = 0; i < 32; ++i) lent.add(region, region.ticket(Rights::read, 1, 1h));
  CHECK(session.stat(region.id()).tickets == 32);
  harness::stop(broker.pid());
  std::promise<void> done;
  auto patience = std::async(std::launch::async, [&, waited = done.get_future()] {
    const bool in_time = waited.wait_for(60s) == std::future_status::ready;  // 32 answers would take longer
    ::kill(broker.pid(), SIGCONT);
    return in_time;
  });
  lent.revoke(1ms);
  done.set_value();
  CHECK(patience.get());
  CHECK(session.stat(region.id()).tickets == 0);
}

TEST_CASE("a rank that lends a region to its parent waits for its supervisor until the deadline at most") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  auto parent = harness::Child::run([&]() -> int {
    ::setpgid(0, 0);  // what stops and goes on in there is no business of ours
    auto context = try_start_processes("lend_beside_stopped", with_broker(broker, StartMethod::spawn, 1, false));
    if (!context || !context->try_join()) return 1;
    return context->result<int>(0) == SHMB_E_DEADLINE ? 0 : 2;
  });
  CHECK(parent.wait() == 0);
}

TEST_CASE("pools and queues travel as arguments") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  ConnectOptions connect;
  connect.socket = broker.socket();
  auto session = Session::connect(connect);
  auto pool = Pool::create(session, {.name = "p", .classes = {{.slot_size = 4096, .slots = 4}}});
  auto queue = pool.open_queue("q", Role::reader, {.kind = QueueKind::mpmc});
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    spawn("send_rank", with_broker(broker, method, 2), pool, QueueAddress::of(queue));
    std::set<std::string> seen;
    Message message;
    while (queue.try_receive(message, Timeout::no_wait()))
      seen.insert(std::string(reinterpret_cast<const char*>(message.bytes().data()), message.bytes().size()));
    CHECK(seen == std::set<std::string>{"0", "1"});
  }
}

TEST_CASE("pools are results, of the broker that the ranks had, whichever one the environment names") {
  harness::BrokerFixture broker, another;
  REQUIRE(broker.running());
  REQUIRE(another.running());
  ::setenv("SHMBROKER_SOCKET", another.socket().c_str(), 1);
  {
    auto session = Session::connect({.socket = broker.socket()});
    auto pool = Pool::create(session, {.name = "p", .classes = {{.slot_size = 4096, .slots = 4}}});
    for (const StartMethod method : kMethods) {
      CAPTURE(name_of(method));
      auto options = with_broker(broker, method, 2);
      for (const bool no_group : {false, true}) {
        CAPTURE(no_group);
        options.no_group = no_group;
        auto context = spawn("give_pool_back", options, pool);
        const auto given = context.result<Pool>(0), same = context.result<Pool>(1);
        CHECK(given.info().id == pool.info().id);
        CHECK(same.info().participant == given.info().participant);  // one session for both
      }
    }
    CHECK(another.books() == "");
  }
  ::unsetenv("SHMBROKER_SOCKET");
  CHECK(broker.books() == "");
}

TEST_CASE("objects that results name are not looked for at a broker that replaced the ranks' broker") {
  harness::BrokerFixture broker, another;
  REQUIRE(broker.running());
  REQUIRE(another.running());
  std::optional<ProcessContext> context;
  {
    auto session = Session::connect({.socket = broker.socket()});
    auto pool = Pool::create(session, {.name = "p", .classes = {{.slot_size = 4096, .slots = 4}}});
    context.emplace(spawn("give_pool_back", with_broker(broker, StartMethod::fork, 1), pool));
  }
  CHECK_THROWS_WITH_AS((void)context->result<Pool>(0), doctest::Contains("pool"), Error);  // it went with its maker
  CHECK(broker.stop() == 0);
  CHECK_THROWS_AS((void)context->result<Pool>(0), Error);
  REQUIRE(::symlink(another.socket().c_str(), broker.socket().c_str()) == 0);
  CHECK_THROWS_WITH_AS((void)context->result<Pool>(0), doctest::Contains("is not the one that these ranks had"), Error);
}

TEST_CASE("queues themselves are arguments: the rank has the end that its parent has not") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  auto session = Session::connect({.socket = broker.socket()});
  auto pool = Pool::create(session, {.name = "p", .classes = {{.slot_size = 4096, .slots = 4}}});
  auto in = pool.open_queue("in", Role::reader, {.kind = QueueKind::mpmc});
  auto out = pool.open_queue("out", Role::writer, {.kind = QueueKind::mpmc});
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    spawn("send_to_parent", with_broker(broker, method, 2), in);
    std::set<std::string> seen;
    Message message;
    for (int i = 0; i < 2; ++i) {
      in.receive(message, 60s);
      seen.insert(std::string(message.text()));
    }
    CHECK(seen == std::set<std::string>{"0", "1"});
    out.send("to a rank");
    CHECK(spawn("receive_from_parent", with_broker(broker, method, 1), out).result<std::string>(0) == "to a rank");
    // An address by hand does not say whose ends it has.
    QueueAddress bare = QueueAddress::of(in);
    bare.role = 0;
    CHECK_THROWS_WITH_AS((void)spawn("send_to_parent", with_broker(broker, method, 1), bare),
                         doctest::Contains("does not say whose ends it has"), ProcessRaisedException);
  }
}

TEST_CASE("regions are results: by the context's session, until it goes") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    {
      auto context = spawn("give_region", with_broker(broker, method, 3), 4096);
      std::optional<Region> taken;
      {
        auto gone = spawn("give_published", with_broker(broker, method, 2), 4096);
        CHECK(gone.result<ReadOnlyRegion>(1).as_span<const int>()[0] == 2);
        CHECK_THROWS_AS((void)gone.result<ReadOnlyRegion>(1), Error);  // once
        taken = context.result<Region>(2);
      }
      taken->as_span<int>()[1] = 5;
      CHECK(taken->as_span<int>()[0] == 3);
      CHECK(broker.books(0).find("tickets") != std::string::npos);  // two that nobody has taken
      context = spawn("nothing", with_broker(broker, method, 1));
      CHECK(taken->as_span<int>()[0] == 3);
      CHECK(shmb_processes_session(context.c(), nullptr, nullptr) == SHMB_E_INVALID);
    }
    CHECK(broker.books() == "");
  }
  auto without = spawn("nothing", ranks_of(StartMethod::spawn, 1));
  shmb_session* none = nullptr;
  CHECK(shmb_processes_session(without.c(), &none, nullptr) == SHMB_E_NOT_FOUND);
}

TEST_CASE("ranks without a group find the broker whose socket the options name") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto session = Session::connect({.socket = broker.socket()});
    auto region = session.create(4096);
    auto options = with_broker(broker, method, 2);
    options.no_group = true;
    spawn("count_region", options, region);
    CHECK(region.as_span<int>()[1] == 2);
  }
}

TEST_CASE("the ranks have a group of their own, which is gone when join returns") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  ConnectOptions connect;
  connect.socket = broker.socket();
  auto session = Session::connect(connect);
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto options = with_broker(broker, method, 2);
    options.group = "crew";
    auto context = spawn("environment", options, std::string("SHMBROKER_GROUP"));
    CHECK(context.result<std::string>(1).starts_with("crew:"));
    CHECK(spawn("environment", options, std::string("SHMBROKER_SOCKET")).result<std::string>(0) == broker.socket());
    CHECK(session.try_join(std::string("crew")).error().status() == Status::not_found);
    options.group = "bad name";
    CHECK_FALSE(try_start_processes("nothing", options).has_value());
  }
}

TEST_CASE("the limit of bytes that was asked for holds in the ranks' group, and is named in the refusal") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  auto options = with_broker(broker, StartMethod::spawn, 1);
  options.limit_bytes = 64 << 10;
  const std::string told = spawn("take_bytes", options, 1 << 20).result<std::string>(0);
  CHECK(told.find("limit") != std::string::npos);
  CHECK(told.find("64") != std::string::npos);
  CHECK(spawn("take_bytes", options, 16 << 10).result<std::string>(0) == "");
}

TEST_CASE("a broker that is killed under running ranks ends none of them, and join tells how they ended") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    harness::BrokerFixture broker;
    REQUIRE(broker.running());
    const harness::TempDir folder;
    Witness witness;
    auto options = with_broker(broker, method, 2, false);
    auto context = spawn("wait_for_file", options, folder.file("go"));
    broker.kill();
    std::ofstream(folder.file("go")) << "go";
    CHECK(context.join());
    CHECK(witness.all_gone());
  }
}

TEST_CASE("ranks without a broker say so") {
  auto options = ranks_of(StartMethod::spawn, 1);
  options.no_group = false;
  options.socket = "/nonexistent/socket";
  CHECK(try_start_processes("nothing", options).error().status() == Status::no_broker);
}

TEST_CASE("the variables of torchrun are set, with the arithmetic of shards") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto options = ranks_of(method, 2);
    options.shards = 3, options.shard = 1, options.master_port = 12345, options.master_addr = "host";
    const std::pair<const char*, const char*> all[] = {{"RANK", "3"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"WORLD_SIZE", "6"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"NODE_RANK", "1"},
                                                       {"MASTER_ADDR", "host"},
                                                       {"MASTER_PORT", "12345"},
                                                       {"ROLE_RANK", "3"},
                                                       {"ROLE_WORLD_SIZE", "6"},
                                                       {"GROUP_WORLD_SIZE", "3"},
                                                       {"ROLE_NAME", "default"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                       {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                                       {"TORCHELASTIC_RUN_ID", "none"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                       {"OMP_NUM_THREADS", "1"}};
    for (const auto& [name, value] : all)
      CHECK(spawn("environment", options, std::string(name)).result<std::string>(1) == value);
    options.shards = 1, options.shard = 0, options.master_port = 0;
    CHECK(std::stoi(spawn("environment", options, std::string("MASTER_PORT")).result<std::string>(0)) > 0);
  }
}

TEST_CASE("torchrun's variables that the user has set stay as they are, and one rank has all its threads") {
  const auto value_in = [](const SpawnOptions& options, const char* name) {
    return spawn("environment", options, std::string(name)).result<std::string>(0);
  };
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::optional<std::string> kept = before == nullptr ? std::nullopt : std::optional<std::string>(before);
  ::unsetenv("OMP_NUM_THREADS");
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    CHECK(value_in(ranks_of(method, 1), "OMP_NUM_THREADS").empty());
    auto options = ranks_of(method, 2);
    options.environment = {"OMP_NUM_THREADS=3", "TORCHELASTIC_RUN_ID=mine", "TORCHELASTIC_USE_AGENT_STORE=True"};
    CHECK(value_in(options, "OMP_NUM_THREADS") == "3");
    CHECK(value_in(options, "TORCHELASTIC_RUN_ID") == "mine");
    CHECK(value_in(options, "TORCHELASTIC_USE_AGENT_STORE") == "True");
    ::setenv("OMP_NUM_THREADS", "5", 1);
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);  // an outer torchrun's: it has no store for these ranks
    CHECK(value_in(ranks_of(method, 2), "OMP_NUM_THREADS") == "5");
    CHECK(value_in(ranks_of(method, 2), "TORCHELASTIC_USE_AGENT_STORE") == "False");
    ::unsetenv("OMP_NUM_THREADS");
    ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  }
  if (kept) ::setenv("OMP_NUM_THREADS", kept->c_str(), 1);
}

TEST_CASE("commands are ranks: success is exit status 0, and their output goes to the chosen place") {
  const harness::TempDir folder;
  auto options = ranks_of(StartMethod::spawn, 2);
  options.program.clear();
  options.command = {"sh", "-c", "echo out $RANK of $WORLD_SIZE; echo err >&2; exit $((RANK * 3))"};
  options.stdio = Stdio::files, options.stdio_path = folder.file("log");
  options.voluntary = 60s;
  try {
    (void)spawn_command(options);
    FAIL("it must throw");
  } catch (const ProcessExitedException& thrown) {
    CHECK(std::string(thrown.what()) == "rank 1 terminated with exit code 3");
    CHECK(thrown.failures().size() == 1);
  }
  CHECK(text_of(folder.file("log.0.out")) == "out 0 of 2\n");
  CHECK(text_of(folder.file("log.1.out")) == "out 1 of 2\n");
  CHECK(text_of(folder.file("log.1.err")) == "err\n");
  options.stdio_path = "/nonexistent/log";
  CHECK(std::string(try_spawn_command(options).error().what()).find("cannot open the output of rank") == 0);
}

TEST_CASE("barrier, broadcast, all-gather and the store, for every start method and from several threads") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto context = spawn("meet", ranks_of(method, 4));
    CHECK(context.result<std::vector<int>>(3) == std::vector<int>{0, 10, 20, 30});
    spawn("meet_from_threads", ranks_of(method, 3));
  }
}

TEST_CASE(
    "a thread of a rank gives up at its deadline where the supervisor takes no word and another thread waits already") {
  auto context = spawn("wait_behind_a_thread", ranks_of(StartMethod::spawn, 1));
  CHECK(context.result<bool>(0));
}

TEST_CASE("a rank has no descriptor of the process that spawned it") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto context = spawn("pidfds_of", ranks_of(method, 2), static_cast<int>(::getpid()));
    for (int rank = 0; rank < 2; ++rank) CHECK(context.result<int>(rank) == 0);
  }
}

TEST_CASE("a region is handed to all ranks by broadcast of a ticket") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto context = spawn("meet_region", with_broker(broker, method, 3));
    for (int rank = 0; rank < 3; ++rank) CHECK(context.result<int>(rank) == 99);
  }
}

TEST_CASE("regions themselves are broadcast and gathered, and nothing holds them when the ranks have ended") {
  harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto context = spawn("share_regions", with_broker(broker, method, 3));
    for (int rank = 0; rank < 3; ++rank) CHECK(context.result<int>(rank) == 1 + 2 + 3 + 3 + 4096);
    CHECK(broker.books() == "");
  }
}

TEST_CASE("a rank that waits for one that dies or ends learns which one, and does not hang") {
  for (const bool dies : {false, true})
    for (const char* how : {"barrier", "gather", "broadcast", "wait"}) {
      CAPTURE(how);
      auto options = ranks_of(StartMethod::spawn, 3, false);
      options.voluntary = 60s;
      // With "wait" nobody can tell who was to set the key: a normal end of one leaves the others waiting.
      if (!dies && std::string(how) == "wait") continue;
      auto context = spawn("wait_for_gone", options, 1, dies, std::string(how));
      const auto state = *context.try_join();
      CHECK(state == (dies ? RanksState::failed : RanksState::succeeded));
      if (dies) CHECK(context.failures().size() == 1);
      const std::string told = context.result<std::string>(2);
      CHECK(told.starts_with("rank 1 "));
      CHECK(context.result<std::string>(0).starts_with("rank 1 "));
    }
}

TEST_CASE("a call that no other rank joins before its deadline fails, and does not count in the next one") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto context = spawn("come_too_early", ranks_of(method, 2));
    CHECK(context.result<std::string>(0) == "deadline deadline deadline ok 6 ok 7 ok ");
    CHECK(context.result<std::string>(1) == "ok 6 ok 7 ok ");
  }
}

TEST_CASE("the store is bounded, and a refusal harms no other rank") {
  auto context = spawn("bounds", ranks_of(StartMethod::spawn, 1));
  CHECK(context.result<std::string>(0) == "ok invalid invalid ok limit limit invalid invalid invalid deadline ok ");
}

TEST_CASE("a process that is no rank may not ask") {
  CHECK_THROWS_WITH_AS(ranks::barrier(),
                       "this process is no rank: it was not started by spawn or `shmbroker run --nprocs`", Error);
  char program[] = "x";
  char* arguments[] = {program, nullptr};
  CHECK_FALSE(spawn_child(1, arguments).has_value());
}
