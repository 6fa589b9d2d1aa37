// SPDX-License-Identifier: Apache-2.0
// A service manager's two protocols: what the broker tells it, and which sockets it takes from it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "daemon/start/service_manager.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/temp_dir.hpp"

using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::RawClient;
using shmb::Fd;
using shmb::daemon::ServiceManager;
namespace sys = shmb::sys;

namespace {

// The manager's end: a datagram socket at a path, or at "@" and an abstract name.
class Manager {
 public:
  explicit Manager(const std::string& address) : socket_(Fd::adopt(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    address.copy(name.sun_path, sizeof name.sun_path - 1);
    if (address[0] == '@') name.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0);
  }
  std::string next(std::int64_t patience = 10'000'000'000) {
    char text[1024];
    if (!sys::poll_readable(socket_.get(), patience).value_or(false)) return "nothing";
    const ssize_t size = ::recv(socket_.get(), text, sizeof text, 0);
    return size < 0 ? "nothing" : std::string(text, static_cast<std::size_t>(size));
  }

 private:
  Fd socket_;
};

Fd listener(const std::string& path, int type = SOCK_SEQPACKET, bool listens = true) {
  Fd made = Fd::adopt(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  REQUIRE(sys::bind_path(made.get(), path));
  if (listens) REQUIRE(sys::listen(made.get(), 16));
  return made;
}

// The report of a child that the manager has started with these variables and this descriptor 3.
std::string taken(int socket, const std::string& names, const std::string& count = "1", bool for_another = false) {
  auto ends = sys::seqpacket_pair();
  REQUIRE(ends);
  auto child = harness::Child::run([&] {
    if (socket >= 0) ::dup2(socket, 3);
    else ::close(3);
    ::setenv("LISTEN_PID", std::to_string(::getpid() + (for_another ? 1 : 0)).c_str(), 1);
    ::setenv("LISTEN_FDS", count.c_str(), 1);
    ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
    auto manager = ServiceManager::from_environment();
    std::string text = manager ? "taken:" : manager.error().sentence;
    if (manager)
      for (const char* name : {"broker", "admin"}) {
        const Fd one = manager->take(name);
        if (!one) continue;
        text += std::string(" ") + name + (manager->take(name) ? " twice" : "");
        if ((::fcntl(one.get(), F_GETFD) & FD_CLOEXEC) == 0) text += " without CLOEXEC";
        if ((::fcntl(one.get(), F_GETFL) & O_NONBLOCK) == 0) text += " that blocks";
      }
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
      if (::getenv(name) != nullptr) text += std::string(" and left ") + name;
    return ::send((*ends)[1].get(), text.data(), text.size(), 0) > 0 ? 0 : 1;
  });
  CHECK(child.wait() == 0);
  char text[1024];
  const ssize_t size = ::recv((*ends)[0].get(), text, sizeof text, MSG_DONTWAIT);
  return size < 0 ? "nothing" : std::string(text, static_cast<std::size_t>(size));
}

}  // namespace

TEST_CASE("after the number of its socket was lost, the service manager is told nothing, and the number stays open") {
  harness::TempDir folder;
  Manager manager(folder.file("notify"));
  ::setenv("NOTIFY_SOCKET", folder.file("notify").c_str(), 1);
  auto notified = ServiceManager::from_environment();
  REQUIRE(notified);
  const Fd others = Fd::adopt(notified->number());
  notified->forget();
  CHECK(!notified->notified());
  notified->ready("serving");
  CHECK(manager.next(0) == "nothing");
  CHECK(::fcntl(others.get(), F_GETFD) >= 0);
}

TEST_CASE("a service manager is told of each state, by a path and by an abstract name") {
  harness::TempDir folder;
  for (const std::string& address : {folder.file("notify"), "@shmbroker-test-" + std::to_string(::getpid())}) {
    CAPTURE(address);
    Manager manager(address);
    ::setenv("NOTIFY_SOCKET", address.c_str(), 1);
    auto notified = ServiceManager::from_environment();
    REQUIRE(notified);
    CHECK(notified->notified());
    CHECK(::getenv("NOTIFY_SOCKET") == nullptr);
    notified->ready("two\nlines");
    CHECK(manager.next() == "READY=1\nSTATUS=two lines");
    const std::int64_t before = sys::now_monotonic() / 1000;
    notified->reloading();
    const std::string reloading = manager.next(), head = "RELOADING=1\nMONOTONIC_USEC=";
    REQUIRE(reloading.starts_with(head));
    CHECK(std::stoll(reloading.substr(head.size())) >= before);
    CHECK(std::stoll(reloading.substr(head.size())) <= sys::now_monotonic() / 1000);
    notified->stopping("done");
    CHECK(manager.next() == "STOPPING=1\nSTATUS=done");
    notified->failed("why");
    CHECK(manager.next() == "STATUS=why");
  }
}

TEST_CASE("a service manager that cannot be reached is a loss and no failure") {
  ::setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
  auto manager = ServiceManager::from_environment();
  REQUIRE(manager);
  CHECK_FALSE(manager->notified());
  CHECK(manager->loss().find("/nowhere/notify") != std::string::npos);
  manager->ready("to nobody");
  ::setenv("NOTIFY_SOCKET", "relative", 1);
  CHECK(ServiceManager::from_environment()->loss().find("relative") != std::string::npos);
  CHECK(ServiceManager::from_environment()->loss().empty());
}

TEST_CASE("messages to a service manager that does not read are lost without a failure") {
  harness::TempDir folder;
  Manager manager(folder.file("notify"));
  ::setenv("NOTIFY_SOCKET", folder.file("notify").c_str(), 1);
  auto notified = ServiceManager::from_environment();
  REQUIRE(notified);
  // Until the queue is full: the kernel holds net.unix.max_dgram_qlen of them.
  auto full = sys::datagram_socket_to(folder.file("notify"));
  REQUIRE(full);
  while (sys::send(full->get(), std::as_bytes(std::span("x", 1)), {}, {}, false)) continue;
  notified->ready("lost");
  while (manager.next(0) == "x") continue;
  notified->ready("heard");
  CHECK(manager.next() == "READY=1\nSTATUS=heard");
}

TEST_CASE("the sockets of a service manager are taken by name, and the variables are removed") {
  harness::TempDir folder;
  const Fd good = listener(folder.file("good"));
  CHECK(taken(good.get(), "broker") == "taken: broker");
  CHECK(taken(good.get(), "admin") == "taken: admin");
  CHECK(taken(good.get(), "broker", "0") == "taken:");
  CHECK(taken(good.get(), "broker", "1", true) == "taken:");  // for another process
}

TEST_CASE("a socket that is not ours is refused with its descriptor, its name and the remedy") {
  harness::TempDir folder;
  const Fd good = listener(folder.file("good"));
  const auto refused = [](const std::string& text, const std::string& why) {
    CAPTURE(text);
    CHECK(text.starts_with("the service manager passed descriptor 3 as '"));
    CHECK(text.find(why) != std::string::npos);
  };
  refused(taken(good.get(), "web"), "is neither 'broker' nor 'admin'");
  refused(taken(good.get(), ""), "is neither 'broker' nor 'admin'");
  refused(taken(listener(folder.file("stream"), SOCK_STREAM).get(), "broker"), "carries no packets");
  refused(taken(listener(folder.file("silent"), SOCK_SEQPACKET, false).get(), "broker"), "does not listen");
  refused(taken(-1, "broker"), "is not open");
  const Fd file = Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC));
  refused(taken(file.get(), "broker"), "is not a socket");
  const Fd internet = Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (internet) refused(taken(internet.get(), "broker"), "is no UNIX socket");
  CHECK(taken(good.get(), "broker", "many") == "LISTEN_FDS='many' is no number of sockets");
  CHECK(taken(good.get(), "broker", "-1") == "LISTEN_FDS='-1' is no number of sockets");
  // The second of a name is descriptor 4.
  auto twice = harness::Child::run([&] {
    ::dup2(good.get(), 3);
    ::dup2(good.get(), 4);
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", "2", 1);
    ::setenv("LISTEN_FDNAMES", "broker:broker", 1);
    auto manager = ServiceManager::from_environment();
    return !manager && manager.error().sentence.find("is the second of that name") != std::string::npos ? 0 : 1;
  });
  CHECK(twice.wait() == 0);
}

TEST_CASE("a broker serves a passed socket, tells its manager, and leaves the socket's file for the next one") {
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    harness::TempDir folder;
    const std::string path = folder.file("passed");
    Manager manager(folder.file("notify"));
    const Fd passed = listener(path);
    // It comes before the broker and waits in the backlog.
    RawClient early = RawClient::connect(path);
    REQUIRE(early.connected());
    BrokerOptions options;
    options.engine = engine;
    options.sockets = {passed.get()};
    options.socket_names = "broker";
    options.notify = folder.file("notify");
    options.config = "[limits]\n";
    {
      BrokerFixture broker(options);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      CHECK(early.hello().ok());
      CHECK(RawClient::connect(broker.admin()).hello().ok());  // the one that was not passed
      CHECK_FALSE(std::filesystem::exists(broker.socket()));
      CHECK(manager.next().starts_with("READY=1\nSTATUS=serving " + broker.directory()));
      broker.reload();
      CHECK(manager.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
      const std::string reloaded = manager.next();
      CHECK(reloaded.starts_with("READY=1\nSTATUS=serving " + broker.directory()));
      CHECK(reloaded.find("; limits applied again; configuration read from ") != std::string::npos);
      broker.configure("[limits]\nbites = 1\n");
      broker.reload();
      CHECK(manager.next().starts_with("RELOADING=1\n"));
      CHECK(manager.next().find("the limits stay as they were: " + broker.config_file() + ":2: unknown key") !=
            std::string::npos);
      broker.configure(options.config);
      early.close();
      CHECK(broker.books() == "");
      CHECK(broker.stop() == 0);
      CHECK(manager.next() == "STOPPING=1\nSTATUS=ending");
      CHECK_FALSE(std::filesystem::exists(broker.admin()));
    }
    REQUIRE(std::filesystem::exists(path));
    RawClient between = RawClient::connect(path);
    REQUIRE(between.connected());
    BrokerFixture next(options);
    REQUIRE_MESSAGE(next.running(), next.log());
    CHECK(between.hello().ok());
    between.close();
  }
}

TEST_CASE("a broker takes both sockets from its manager") {
  harness::TempDir folder;
  const Fd one = listener(folder.file("admin")), two = listener(folder.file("broker"));
  BrokerOptions options;
  options.sockets = {one.get(), two.get()};
  options.socket_names = "admin:broker";
  options.expect_empty_books = false;  // the fixture asks at the usual place
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  CHECK_FALSE(std::filesystem::exists(broker.admin()));
  RawClient admin = RawClient::connect(folder.file("admin")), client = RawClient::connect(folder.file("broker"));
  CHECK(admin.hello().ok());
  CHECK(client.hello().ok());
}

TEST_CASE("a broker does not replace a socket file on which another program listens") {
  harness::TempDir folder;
  const std::string place = folder.file("d");
  std::filesystem::create_directory(place);
  std::filesystem::permissions(place, std::filesystem::perms::owner_all);
  const Fd other = listener(place + "/socket");
  Manager manager(folder.file("notify"));
  BrokerOptions options;
  options.arguments = {"--directory", place};
  options.notify = folder.file("notify");
  BrokerFixture broker(options);
  CHECK(broker.start_status() == 1);
  CHECK_MESSAGE(broker.log().find("has a listener that is no shmbrokerd") != std::string::npos, broker.log());
  CHECK(manager.next().find("STATUS=") == 0);
  CHECK(sys::socket_facts(other.get())->listening);
  CHECK(std::filesystem::exists(place + "/socket"));
}
