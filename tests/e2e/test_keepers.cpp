// SPDX-License-Identifier: Apache-2.0
// The daemon with keepers (--keep): what clients see when any of its three processes goes away. In the short form the
// broker is killed some tens of times. SHMBROKER_KEEPER_KILLS=1000 is the long form, of some minutes.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "daemon/books/image.hpp"
#include "tests/e2e/kept_daemon.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace e2e;

namespace {

int kills() {
  const char* asked = std::getenv("SHMBROKER_KEEPER_KILLS");
  return asked != nullptr ? std::atoi(asked) : 40;
}

// Works until told to stop, with a new session every ten rounds.
void work(const World& world, std::atomic<bool>& stop, std::atomic<int>& sessions, std::atomic<int>& rounds) {
  for (; !stop; ++sessions) {
    const Session session = world.connect();
    const Region own = session.create(4096);
    fill(own.bytes(), 7);
    for (int each = 0; each < 10 && !stop; ++each, ++rounds) {
      session.create(4096);
      session.attach(own.id());
      session.ping();
      ::usleep(200);
    }
    NEED(holds(own.bytes(), 7));
  }
}

}  // namespace

TEST_CASE("a broker with keepers serves, has the started process as its own, and ends by SIGTERM with 0") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    REQUIRE(processes.whole());
    CHECK(processes.broker() != world.broker().pid());
    CHECK(status_of(world.connect().try_create(4096)) == Status::ok);
    CHECK(world.broker().books().empty());
    CHECK(world.broker().stop() == 0);
    CHECK(processes.all().empty());
    struct stat facts;
    CHECK(::lstat(world.socket().c_str(), &facts) != 0);
    CHECK(::lstat(world.broker().admin().c_str(), &facts) != 0);
  }
}

TEST_CASE("the broker is killed again and again: clients that come and go are served, and no call fails") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    struct Told {
      std::atomic<bool> stop{false};
      std::atomic<int> sessions{0}, rounds{0};
    };
    Shared<Told> told;
    std::vector<Child> clients;
    for (int each = 0; each < 4; ++each)
      clients.push_back(actor([&] { work(world, told->stop, told->sessions, told->rounds); }));
    pid_t broker = 0;
    const int times = std::max(4, kills() / harness::kSlowdown);
    for (int each = 0; each < times; ++each) {
      broker = processes.await_broker(broker);
      const int before = told->rounds;
      if (each % 4 == 0) REQUIRE(eventually([&] { return told->rounds > before; }));
      ::usleep(static_cast<unsigned>(each % 7) * 300);
      ::kill(broker, SIGKILL);
    }
    const int before = told->rounds;
    CHECK(eventually([&] { return told->rounds > before + 20; }));
    told->stop = true;
    for (Child& client : clients) CHECK(client.wait() == 0);
    MESSAGE(engine << ": " << times << " brokers killed, " << told->sessions.load() << " sessions, "
                   << told->rounds.load() << " rounds of work");
    // Nothing of the dead brokers is left in the table.
    CHECK(eventually([&] { return world.broker().descriptors() < 40; }));
    CHECK(processes.whole());
  }
}

namespace {

const int kLives = 280;  // more than a start has calls: the last ones come through, and are killed as they serve

// Behind it no broker is killed any more: one that has served so many sessions has made more than kLives calls.
void await_last_life(const World& world) {
  int served = 0;
  CHECK(eventually([&] {
    const auto session = Session::try_connect({.socket = world.socket()});
    const bool right = session && status_of(session->try_create(4096)) == Status::ok;
    served = right ? served + 1 : 0;
    return served >= 60;
  }));
}

}  // namespace

TEST_CASE("a broker that is killed at each call of its start is replaced until one serves") {
  NEEDS_KEEPERS();
  World world(with_keepers("auto", "die_each=" + std::to_string(kLives)));
  await_last_life(world);
  std::size_t told = 0;
  const std::string log = world.broker().log();
  for (std::size_t at = 0; (at = log.find("this one takes its place", at)) != log.npos; ++at) ++told;
  CHECK(told > 20);  // of the calls before that line nothing is told
  CHECK(log.find(" 100 brokers in a row have ended before they could serve") != log.npos);
  CHECK(eventually([&] { return world.broker().descriptors() < 40; }));
}

namespace {

// What a process leaves in group `job` that its broker keeps.
void leave_kept(const World& world, const std::string& name, std::uint64_t seed) {
  const Session session = world.connect();
  session.create_group({.name = "job", .limit_bytes = 8 * MiB, .adopt_existing = true});
  session.join("job");
  fill(session.create(40 * KiB, {.name = name, .keep = Keep(std::chrono::hours(1))}).bytes(), seed);
}

bool has_kept(const Session& session, const std::string& name, std::uint64_t seed) {
  const auto region = session.try_attach("job/" + name);
  return region && holds(region->bytes(), seed);
}

}  // namespace

TEST_CASE("kept regions have their names, identities and bytes after each kill of the broker, also while one begins") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    const int times = std::max(4, kills() / 2 / harness::kSlowdown);
    std::vector<RegionId> ids;
    leave_kept(world, "first", 99);
    pid_t broker = 0;
    for (int each = 0; each < times; ++each) {
      const auto name = [](std::size_t number) { return "w" + std::to_string(number); };
      broker = processes.await_broker(broker);
      leave_kept(world, name(ids.size()), ids.size());
      ids.push_back(RegionId::from_c(world.connect().stat("job/" + name(ids.size())).id));
      const Session holder = world.connect();
      const auto held = holder.attach(ids.back());
      ::kill(broker, SIGKILL);
      if (each % 2 == 0) {
        broker = processes.await_broker(broker);
        ::usleep(static_cast<unsigned>(each % 40) * 100);
        ::kill(broker, SIGKILL);
      }
      const Session session = world.connect();
      for (std::size_t i = ids.size() - std::min<std::size_t>(ids.size(), 8); i < ids.size(); ++i) {
        REQUIRE(has_kept(session, name(i), i));
        CHECK(RegionId::from_c(session.stat("job/" + name(i)).id) == ids[i]);
      }
      const auto kept = session.stat("job/first");
      CHECK(kept.holders == 0);
      CHECK(kept.freed_at_ns != 0);
      CHECK(holds(held.bytes(), ids.size() - 1));  // a mapping is its process' own
      // So that a thousand kills do not need a thousand regions.
      if (ids.size() == 20) {
        for (std::size_t i = 0; i < ids.size(); ++i) session.unname("job/" + name(i));
        ids.clear();
      }
    }
    MESSAGE(engine << ": " << times << " rounds of one or two kills");
    const Session session = world.connect();
    CHECK(has_kept(session, "first", 99));
    session.create_group({.name = "job", .adopt_existing = true});
    // Its limit is still that of the group that was made before the first kill.
    CHECK(status_of((session.join("job"), session.try_create(16 * MiB))) == Status::limit);
    for (std::size_t i = 0; i < ids.size(); ++i) session.unname("job/w" + std::to_string(i));
    session.unname("job/first");
    CHECK(eventually([&] { return world.broker().descriptors() < 40; }));
    CHECK(world.broker().log().find("own bug") == std::string::npos);
  }
}

TEST_CASE("a kept region is there when a broker has been killed at each call of its start") {
  NEEDS_KEEPERS();
  World world(with_keepers("auto", "die_each=" + std::to_string(kLives) + ":1"));  // the first one serves
  const Processes processes(world.broker());
  leave_kept(world, "weights", 5);
  ::kill(processes.await_broker(), SIGKILL);
  const auto died = [&] {
    int told = 0;
    const std::string log = world.broker().log();
    for (std::size_t at = 0; (at = log.find("this one takes its place", at)) != log.npos; ++at) ++told;
    return told;
  };
  const auto found = [&] {
    const auto session = Session::try_connect({.socket = world.socket()});
    return session && has_kept(*session, "weights", 5);
  };
  CHECK(eventually([&] { return died() > 40 && found(); }));
  await_last_life(world);
  CHECK(world.broker().log().find("is lost") == std::string::npos);
  const Session session = world.connect();
  CHECK(has_kept(session, "weights", 5));
  session.unname("job/weights");
}

TEST_CASE("kept regions stay under a limit on the address space that has no room for the whole file of the books") {
  NEEDS_KEEPERS();
  if (harness::kAddressSanitizer) SKIP_CASE("AddressSanitizer maps more than that");
  World world(with_keepers());
  const Processes processes(world.broker());
  leave_kept(world, "weights", 5);
  const rlimit limit{1 << 30, 1 << 30};
  REQUIRE(::prlimit(world.broker().pid(), RLIMIT_AS, &limit, nullptr) == 0);  // each later broker is its copy
  for (int each = 0; each < 2; ++each) {
    const pid_t broker = processes.await_broker();
    ::kill(broker, SIGKILL);
    processes.await_broker(broker);
    const Session session = world.connect();
    CHECK(has_kept(session, "weights", 5));
  }
  world.connect().unname("job/weights");
}

TEST_CASE("a broker that finds damaged books says so, keeps nothing, and serves") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  leave_kept(world, "weights", 5);
  const pid_t broker = processes.await_broker();
  const std::string folder = "/proc/" + std::to_string(broker) + "/fd";
  int books = -1;
  std::error_code hidden;
  for (const auto& entry : std::filesystem::directory_iterator(folder, hidden))
    if (std::filesystem::read_symlink(entry, hidden).string().starts_with("/memfd:shm:books ("))
      books = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
  if (books < 0) SKIP_CASE("this user may not open the broker's descriptors");
  shmb::daemon::books::Head head;
  REQUIRE(::pread(books, &head, sizeof head, 0) == static_cast<ssize_t>(sizeof head));
  const std::uint64_t region_table = head.tables[shmb::daemon::books::RegionRecord::kNumber - 1].offset;
  REQUIRE(::pwrite(books, "damage", 6, static_cast<off_t>(region_table + 50)) == 6);
  ::close(books);
  ::kill(broker, SIGKILL);
  processes.await_broker(broker);
  const Session session = world.connect();
  CHECK(status_of(session.try_attach("job/weights")) == Status::not_found);
  CHECK(status_of(session.try_create(4096)) == Status::ok);
  CHECK(world.broker().log().find(
            "what the last broker has kept is lost: the books contradict themselves: region 1 ") != std::string::npos);
}

TEST_CASE("the next broker has the limits of the file as it is now, and those of the start where the file is bad") {
  BrokerOptions options = with_keepers();
  options.config = "[limits]\nbytes = \"64M\"\n";
  World world(options);
  const Processes processes(world.broker());
  const auto creates = [&](std::size_t bytes) {
    auto session = Session::try_connect({.socket = world.socket()});
    return session ? status_of(session->try_create(bytes)) : Status::session_lost;
  };
  const auto next = [&] {
    const pid_t broker = processes.await_broker();
    ::kill(broker, SIGKILL);
    processes.await_broker(broker);
  };
  CHECK(creates(16 * MiB) == Status::ok);
  // As a reload that was applied, or one that came while no broker lived.
  world.broker().configure("[limits]\nbytes = \"8M\"\n");
  next();
  CHECK(creates(16 * MiB) == Status::limit);
  CHECK(creates(4 * MiB) == Status::ok);
  world.broker().configure("[limits]\nbytes = nonsense\n");
  next();
  CHECK(creates(16 * MiB) == Status::ok);
  CHECK(world.broker().log().find("the limits are those of the first start: ") != std::string::npos);
}

TEST_CASE("a broker whose event loop fails, and that is replaced, does not tell the service manager of an end") {
  if (harness::engines().size() < 2) SKIP_CASE("io_uring does not work here");
  harness::TempDir folder;
  BrokerOptions options = with_keepers("io_uring", "fail=io_uring_enter:EIO:20:-1");
  options.expect_exit_0 = options.expect_empty_books = false;
  options.notify = folder.file("notify");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  options.notify.copy(address.sun_path, sizeof address.sun_path - 1);
  const int manager = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(manager, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  {
    World world(options);
    const Processes processes(world.broker());
    // The session ends with the fault that may be its own: else the same request would end each broker, for ever.
    auto session = Session::try_connect({.socket = world.socket()});
    CHECK(eventually([&] {
      if (!session) session = Session::try_connect({.socket = world.socket()});
      return session && status_of(session->try_ping()) == Status::session_lost;
    }));
    CHECK(world.broker().log().find("this one takes its place") != std::string::npos);
    CHECK(world.broker().log().find(" soon after their start, or hung: all sessions end") != std::string::npos);
    std::string told;
    char text[4096];
    for (ssize_t length; (length = ::recv(manager, text, sizeof text, MSG_DONTWAIT)) > 0;)
      told.append(text, static_cast<std::size_t>(length));
    CHECK(told.find("READY=1") != std::string::npos);
    CHECK(told.find("STOPPING=1") == std::string::npos);
    world.broker().stop();
  }
  ::close(manager);
}

TEST_CASE("keep in the file is for a system broker: a private one says so and has no keepers") {
  BrokerOptions options;
  options.config = "keep = true\n";
  World world(options);
  const Processes processes(world.broker());
  CHECK(processes.all() == std::vector<pid_t>{world.broker().pid()});
  CHECK(world.broker().log().find("is for a system broker") != std::string::npos);
  CHECK(status_of(world.connect().try_create(4096)) == Status::ok);
}

TEST_CASE("keep in the file gives a system broker its keepers") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  BrokerOptions options;
  options.system = true;
  options.config = "keep = true\n";
  World world(options);
  const Processes processes(world.broker());
  CHECK(processes.whole());
  CHECK(status_of(world.connect().try_create(4096)) == Status::ok);
}

TEST_CASE("without /proc the next broker serves as the first one did") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  Child child = actor([] {
    NEED(::unshare(CLONE_NEWNS) == 0);
    NEED(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    NEED(::mount("none", "/proc", "tmpfs", 0, nullptr) == 0);
    BrokerOptions options = with_keepers();
    options.expect_empty_books = options.expect_exit_0 = false;
    World world(options);
    std::vector<Session> sessions;
    while (sessions.size() < 40) sessions.push_back(world.connect());
    const std::string log = world.broker().log();
    const std::string before = "shmbrokerd[";
    ::kill(std::atoi(log.c_str() + log.rfind(before) + before.size()), SIGKILL);
    for (const Session& each : sessions) NEED_STATUS(each.try_ping(), ok);
    NEED(status_of(world.connect().try_create(4096)) == Status::ok);
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the death of a keeper disturbs no session") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  REQUIRE(processes.whole());
  const Session session = world.connect();
  Region region = session.create(4096);
  const pid_t broker = processes.broker(), second = processes.second();
  ::kill(second, SIGKILL);
  const pid_t heir = processes.await_second(second);
  world.broker().kill();  // the main one
  CHECK(eventually([&] { return processes.keepers().size() == 2; }));
  CHECK(processes.broker() == broker);
  CHECK(status_of(session.try_ping()) == Status::ok);
  CHECK(status_of(session.try_create(4096)) == Status::ok);
  // The new main keeper replaces the broker too, though that is no child of it.
  ::kill(broker, SIGKILL);
  processes.await_broker(broker);
  CHECK(status_of(world.connect().try_create(4096)) == Status::ok);
  ::kill(heir, SIGTERM);
  CHECK(eventually([&] { return processes.all().empty(); }));
}

TEST_CASE("a second daemon in the same directory is refused, also after main keeper and broker have died") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  REQUIRE(processes.whole());
  const auto refused = [&] {
    BrokerOptions options = with_keepers();
    options.arguments.insert(options.arguments.end(), {"--directory", world.broker().directory()});
    options.expect_empty_books = false;
    BrokerFixture other(options);
    return !other.running() && other.start_status() == 1 && other.log().find("another shmbrokerd") != std::string::npos;
  };
  CHECK(refused());
  const pid_t broker = processes.broker();
  ::kill(broker, SIGKILL);
  world.broker().kill();
  processes.await_broker(broker);
  CHECK(refused());
}

TEST_CASE("a call that waits for a name gets it by the next broker, also where the last one was stopped first") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  REQUIRE(processes.whole());
  const pid_t broker = processes.broker();
  Gate waiting;
  Child client = actor([&] {
    const Session session = world.connect();
    waiting.open();
    NEED_STATUS(session.try_attach("job/later", {.wait = Timeout::forever()}), ok);
    NEED_STATUS(world.connect().try_create(4096), ok);
  });
  REQUIRE(waiting.wait());
  ::usleep(20'000);
  ::kill(broker, SIGSTOP);
  ::usleep(50'000);
  ::kill(broker, SIGKILL);
  const Session maker = world.connect();
  maker.create_group({.name = "job"});
  maker.join("job");
  const Region later = maker.create(4096, {.name = "later"});
  CHECK(client.wait() == 0);
}
