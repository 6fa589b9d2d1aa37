// SPDX-License-Identifier: Apache-2.0
// Which broker is found, and every way not to find one, each with a sentence.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/private_place.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/session/connect.hpp"
#include "client/session/launch.hpp"
#include "proto/refusal.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/session.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

// A world of its own: nothing of the machine's is found.
struct World {
  harness::TempDir folder;
  Places places;
  ConnectOptions options;

  World() {
    places.system_socket = folder.file("system/socket");
    places.temporary_dir = folder.path();
    places.uid = ::geteuid();
    places.daemon_variable = folder.file("absent");
    options.no_group = true;
  }
  Result<std::shared_ptr<Session>> connect() const { return shmb::client::connect(options, places); }
};

bool says(const Error& error, const std::string& words) {
  if (error.sentence.find(words) != std::string::npos) return true;
  MESSAGE("the sentence was: " << error.sentence);
  return false;
}

}  // namespace

TEST_CASE("an explicit socket and SHMBROKER_SOCKET never fall through to another broker") {
  const harness::BrokerFixture broker;
  World world;
  world.places.system_socket = broker.socket();
  CHECK(world.connect().has_value());
  world.options.socket = world.folder.file("nowhere");
  auto refused = world.connect();
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), "given by the program"));
  CHECK(says(refused.error(), world.options.socket));
  world.options.socket.clear();
  world.places.socket_variable = world.folder.file("nowhere");
  refused = world.connect();
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), "SHMBROKER_SOCKET"));
  world.options.local_ok = true;
  CHECK(status_of(world.connect()) == Status::no_broker);
  world.places.socket_variable = broker.socket();
  CHECK(must(world.connect())->facts().how.find("SHMBROKER_SOCKET") != std::string::npos);
}

TEST_CASE("the system broker comes first, then the private one, and `how` says what was passed over") {
  const harness::BrokerFixture broker;
  World world;
  world.options.no_start = true;
  ::mkdir(world.folder.file("run").c_str(), 0700);
  std::filesystem::create_symlink(broker.directory(), world.folder.file("run/shmbroker"));
  world.places.runtime_dir_variable = world.folder.file("run");
  // A link is no directory: somebody else could move it.
  CHECK(status_of(world.connect()) == Status::no_broker);
  std::filesystem::remove(world.folder.file("run/shmbroker"));
  ::mkdir(world.folder.file("run/shmbroker").c_str(), 0700);
  std::filesystem::create_symlink(broker.socket(), world.folder.file("run/shmbroker/socket"));
  auto session = must(world.connect());
  CHECK(session->facts().how.find("private broker at") == 0);
  CHECK(session->facts().how.find("system broker:") != std::string::npos);
  world.places.system_socket = broker.socket();
  CHECK(must(world.connect())->facts().how.find("system broker at") == 0);
  world.options.admin = true;
  CHECK(must(world.connect())->facts().socket == broker.admin());
}

TEST_CASE("no broker, and none can be started: a sentence that names all that was tried, or a local session") {
  World world;
  auto refused = world.connect();
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), world.places.system_socket));
  CHECK(says(refused.error(), "shmbroker-" + std::to_string(::geteuid())));
  CHECK(says(refused.error(), "SHMBROKER_DAEMON"));
  world.places.daemon_variable.reset();
  world.options.no_start = true;
  CHECK(says(world.connect().error(), "none was to be started"));
  world.options.local_ok = true;
  auto session = must(world.connect());
  CHECK(session->is_local());
  CHECK(session->facts().how.find("local, because there is no broker") == 0);
  world.options.local_only = true;
  CHECK(must(world.connect())->facts().how == "local, as asked for");
}

TEST_CASE("a runtime directory that is not ours, or is no directory, is passed over and said so") {
  World world;
  const std::string runtime = world.folder.file("run");
  world.places.runtime_dir_variable = runtime;
  CHECK(private_directory(world.places).note.find("does not exist") != std::string::npos);
  {
    const Fd file = std::move(*sys::open(runtime.c_str(), O_CREAT | O_WRONLY, 0600));
  }
  CHECK(private_directory(world.places).note.find("not a directory") != std::string::npos);
  ::unlink(runtime.c_str());
  ::mkdir(runtime.c_str(), 0700);
  CHECK(private_directory(world.places).path == runtime + "/shmbroker");
  world.places.uid = ::geteuid() + 1;
  const auto foreign = private_directory(world.places);
  CHECK(foreign.note.find("belongs to uid") != std::string::npos);
  CHECK(foreign.path == world.folder.path() + "/shmbroker-" + std::to_string(world.places.uid));
  world.places.runtime_dir_variable = "relative";
  CHECK(private_directory(world.places).note.find("not absolute") != std::string::npos);
}

TEST_CASE("a directory in /tmp that another user laid out is refused, not used") {
  World world;
  const std::string directory = private_directory(world.places).path;
  ::mkdir(directory.c_str(), 0777);
  ::chmod(directory.c_str(), 0777);
  auto refused = world.connect();
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), "can be written by others"));
  ::chmod(directory.c_str(), 0700);
  if (!harness::can_change_uid()) SKIP_CASE("needs to give a directory away");
  REQUIRE(::chown(directory.c_str(), 12345, 12345) == 0);
  refused = world.connect();
  CHECK(says(refused.error(), "belongs to uid 12345"));
}

TEST_CASE("a private socket behind which another uid listens is refused") {
  if (!harness::can_change_uid()) SKIP_CASE("needs a process of another uid");
  World world;
  const std::string directory = private_directory(world.places).path;
  ::chmod(world.folder.path().c_str(), 0755);
  ::mkdir(directory.c_str(), 0700);
  ::mkdir(world.folder.file("open").c_str(), 0777);
  ::chmod(world.folder.file("open").c_str(), 0777);
  const std::string foreign = world.folder.file("open/s");
  const harness::Gate listening, done;
  auto impostor = harness::Child::run_as(65534, 65534, [&] {
    auto socket = sys::seqpacket_socket(false);
    if (!socket || !sys::bind_path(socket->get(), foreign) || !sys::listen(socket->get(), 5)) return 1;
    ::chmod(foreign.c_str(), 0666);
    listening.open();
    done.wait();
    return 0;
  });
  REQUIRE(listening.wait());
  std::filesystem::create_symlink(foreign, directory + "/socket");
  world.options.no_start = true;
  auto refused = world.connect();
  done.open();
  CHECK(impostor.wait() == 0);
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), "belongs to a process of uid 65534"));
}

TEST_CASE("a stale socket, a file that is none, and a path too long are sentences") {
  World world;
  const std::string stale = world.folder.file("stale");
  {
    auto socket = sys::seqpacket_socket(false);
    REQUIRE(sys::bind_path(socket->get(), stale).has_value());
  }
  world.options.socket = stale;
  CHECK(says(world.connect().error(), "ECONNREFUSED"));
  const std::string file = world.folder.file("file");
  {
    const Fd made = std::move(*sys::open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  }
  world.options.socket = file;
  CHECK(says(world.connect().error(), "ECONNREFUSED"));
  world.options.socket = world.folder.path() + "/" + std::string(120, 'x');
  CHECK(says(world.connect().error(), "107 bytes"));
}

TEST_CASE("a listener that accepts and never answers ends connect at its deadline") {
  World world;
  const std::string path = world.folder.file("mute");
  auto socket = sys::seqpacket_socket(false);
  REQUIRE(sys::bind_path(socket->get(), path).has_value());
  REQUIRE(sys::listen(socket->get(), 1).has_value());
  world.options.socket = path;
  world.options.timeout = 50'000'000;
  CHECK(status_of(world.connect()) == Status::deadline);
  // Backlog full now: connect itself must give up.
  CHECK(status_of(world.connect()) == Status::deadline);
  CHECK(status_of(world.connect()) == Status::deadline);
}

TEST_CASE("a broker that refuses the session is reported as such, and no other one is tried") {
  harness::BrokerOptions options;
  options.config = "[limits]\nuid_sessions = 1\n";
  World world;
  const harness::BrokerFixture broker(options);
  if (!broker.running()) {
    MESSAGE(broker.log());
    FAIL("the broker did not start");
  }
  auto first = open(broker);
  world.places.system_socket = broker.socket();
  world.options.local_ok = true;
  auto second = world.connect();
  CHECK(status_of(second) == Status::limit);
}

namespace {

// Accepts one connection, reads HELLO and answers as `answer` writes it.
template <class Answer>
std::thread play_broker(const Fd& listener, Answer answer) {
  return std::thread([&listener, answer] {
    (void)sys::poll_readable(listener.get(), 20'000'000'000);
    auto peer = sys::accept(listener.get());
    if (!peer) return;
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    (void)sys::poll_readable(peer->get(), 20'000'000'000);
    std::vector<Fd> fds;
    if (!sys::receive(peer->get(), buffer, fds, false)) return;
    shmbw_header header;
    std::memcpy(&header, buffer.data(), sizeof header);
    std::vector<std::byte> out(1024);
    (void)sys::send(peer->get(), answer(std::span(out), header.tag), {}, {}, false);
  });
}

}  // namespace

TEST_CASE("a broker of another version, or one that answers nonsense, is a sentence") {
  World world;
  const std::string path = world.folder.file("other");
  const Fd listener = std::move(*sys::seqpacket_socket(true));
  REQUIRE(sys::bind_path(listener.get(), path).has_value());
  REQUIRE(sys::listen(listener.get(), 5).has_value());
  world.options.socket = path;
  std::thread broker;
  Result<std::shared_ptr<Session>> refused = error(Status::ok, "");
  SUBCASE("it refuses ours") {
    broker = play_broker(listener, [](std::span<std::byte> out, std::uint64_t tag) {
      Error no;
      no.status = Status::version;
      no.sentence = "this broker speaks protocol 7 to 9";
      return wire::write_error_reply(out, SHMBW_OP_HELLO, tag, no);
    });
    refused = world.connect();
    CHECK(status_of(refused) == Status::version);
    CHECK(says(refused.error(), "protocol 7 to 9"));
  }
  SUBCASE("it chooses one that we did not offer") {
    broker = play_broker(listener, [](std::span<std::byte> out, std::uint64_t tag) {
      shmbw_hello_reply reply{};
      reply.version = 7;
      wire::Writer writer(out);
      writer.begin(SHMBW_OP_HELLO | SHMBW_REPLY, tag, Status::ok, reply);
      return writer.finish(0);
    });
    refused = world.connect();
    CHECK(status_of(refused) == Status::version);
    CHECK(says(refused.error(), "protocol 7"));
  }
  SUBCASE("it is no broker at all") {
    broker = play_broker(listener, [](std::span<std::byte> out, std::uint64_t) { return wire::Bytes(out).first(30); });
    refused = world.connect();
    CHECK(status_of(refused) == Status::no_broker);
    CHECK(says(refused.error(), "broke the protocol"));
  }
  broker.join();
}

namespace {

// Hangs up on so many connections, one after the other. `last` is called before the last one is hung up on.
class Hangs {
 public:
  Hangs(std::string path, int times, std::function<void()> last)
      : path_(std::move(path)), times_(times), last_(std::move(last)) {
    auto socket = sys::seqpacket_socket(false);
    REQUIRE((socket && sys::bind_path(socket->get(), path_) && sys::listen(socket->get(), 8)));
    listener_ = std::move(*socket);
    thread_ = std::thread([this] { run(); });
  }
  ~Hangs() { thread_.join(); }
  int met() const { return met_; }

 private:
  void run() {
    for (; met_ < times_; ++met_) {
      auto readable = sys::poll_readable(listener_.get(), 10'000'000'000);
      if (!readable || !*readable) return;
      if (met_ + 1 == times_) last_();
      (void)sys::accept(listener_.get());
    }
    listener_.reset();
  }
  std::string path_;
  int times_;
  std::function<void()> last_;
  Fd listener_;
  std::atomic<int> met_{0};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a broker that ends during the greeting is no failure where its successor listens, at any of the places") {
  const harness::BrokerFixture broker;
  for (const int which : {0, 1, 2}) {
    for (const int times : {1, 3}) {
      CAPTURE(which);
      CAPTURE(times);
      World world;
      world.options.no_start = true;
      std::string path = world.folder.file("s");
      if (which == 0) world.options.socket = path;
      if (which == 1) world.places.system_socket = path;
      if (which == 2) {
        const std::string directory = private_directory(world.places).path;
        ::mkdir(directory.c_str(), 0700);
        path = directory + "/socket";
      }
      const Hangs hangs(path, times, [&] {
        std::filesystem::create_symlink(broker.socket(), path + ".new");
        std::filesystem::rename(path + ".new", path);
      });
      auto session = world.connect();
      CHECK(status_of(session) == Status::ok);
      if (!session) MESSAGE(session.error().sentence);
      CHECK(hangs.met() == times);
    }
  }
}

TEST_CASE("a private broker that ends during the greeting, and leaves nothing, is followed by one that is started") {
  World world;
  world.places.daemon_variable = harness::BrokerFixture::program();
  const std::string directory = private_directory(world.places).path;
  ::mkdir(directory.c_str(), 0700);
  pid_t started = 0;
  {
    const Hangs hangs(directory + "/socket", 2, [&] { std::filesystem::remove(directory + "/socket"); });
    auto session = world.connect();
    if (!session) MESSAGE(session.error().sentence);
    REQUIRE(status_of(session) == Status::ok);
    CHECK((*session)->facts().started_by_us);
    started = (*session)->facts().broker_pid;
  }
  REQUIRE(started > 0);
  ::kill(started, SIGTERM);
}

TEST_CASE("a listener that never greets is an error in time, with a sentence that says so") {
  World world;
  world.options.socket = world.folder.file("s");
  const Hangs hangs(world.options.socket, 6, [] {});
  auto refused = world.connect();
  CHECK(status_of(refused) == Status::no_broker);
  CHECK(says(refused.error(), "no greeting"));
}

TEST_CASE("where another user has made the private broker's directory, all programs of a user share a second place") {
  if (::geteuid() != 0) SKIP_CASE("only root can play another user");
  World world;
  world.places.daemon_variable = harness::BrokerFixture::program();
  const std::string first = private_directory(world.places).path;
  const auto squat = [&] {
    ::mkdir(first.c_str(), 0700);
    REQUIRE(::chown(first.c_str(), 60001, 60001) == 0);
  };
  squat();
  // Names that another user could guess at, or make: none of them is taken.
  for (const std::string& name : {first + "-", first + "-0", first + "-" + std::string(32, 'a')}) {
    ::mkdir(name.c_str(), 0700);
    REQUIRE(::chown(name.c_str(), 60001, 60001) == 0);
  }
  ::mkdir((first + "-" + std::string(32, 'b')).c_str(), 0755);
  ::chmod((first + "-" + std::string(32, 'b')).c_str(), 0755);  // ours, but not closed to others
  std::filesystem::create_symlink(world.folder.path(), first + "-" + std::string(32, 'c'));
  constexpr int kAtOnce = 8;
  std::vector<Result<std::shared_ptr<Session>>> sessions(kAtOnce, error(Status::invalid, ""));
  std::vector<std::thread> threads;
  for (auto& session : sessions) threads.emplace_back([&] { session = world.connect(); });
  for (auto& thread : threads) thread.join();
  for (auto& session : sessions) {
    if (!session) MESSAGE(session.error().sentence);
    REQUIRE(status_of(session) == Status::ok);
    CHECK((*session)->facts().broker_pid == (*sessions[0])->facts().broker_pid);
    CHECK((*session)->facts().socket == (*sessions[0])->facts().socket);
    CHECK((*session)->facts().how.find(first + " belongs to uid 60001") != std::string::npos);
  }
  const std::string second = (*sessions[0])->facts().socket;
  CHECK(second.starts_with(first + "-"));
  CHECK(second.size() == first.size() + 1 + 32 + std::strlen("/socket"));
  struct stat facts;
  CHECK(::stat(second.substr(0, second.rfind('/')).c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0700);
  CHECK(facts.st_uid == ::geteuid());
  // The other user lets go of the first place: a client that comes now still meets the broker that is there.
  ::rmdir(first.c_str());
  CHECK(must(world.connect())->facts().socket == second);
  const pid_t pid = (*sessions[0])->facts().broker_pid;
  sessions.clear();
  ::kill(pid, SIGTERM);
}

TEST_CASE("makers of a second place that begin at one time agree on one, and leave no other") {
  const harness::TempDir folder;
  const std::uint32_t uid = ::geteuid();
  for (int round = 0; round < 20; ++round) {
    const std::string temporary = folder.file(std::to_string(round));
    ::mkdir(temporary.c_str(), 0700);
    CHECK_FALSE(second_place(temporary, uid).has_value());
    std::vector<std::string> made(6);
    std::vector<std::thread> threads;
    for (auto& path : made)
      threads.emplace_back([&] {
        if (auto place = make_second_place(temporary, uid)) path = *place;
      });
    for (auto& thread : threads) thread.join();
    for (const std::string& path : made) CHECK(path == made[0]);
    CHECK(second_place(temporary, uid) == made[0]);
    CHECK(std::distance(std::filesystem::directory_iterator(temporary), {}) == 1);
  }
}
