// SPDX-License-Identifier: Apache-2.0
// Everything that can be wrong with the place of a broker: what is found there is neither used nor touched when it is
// not ours, each refusal is a sentence that names the path, and a local session is still to be had.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "client/session/connect.hpp"
#include "tests/e2e/machine.hpp"
#include "tests/e2e/own_broker.hpp"

using namespace e2e;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return true;
  std::fprintf(stderr, "not in \"%s\": %s\n", text.c_str(), part.c_str());
  return false;
}

// Connecting fails with NO_BROKER and a sentence that has all `parts`; a local session says the same of itself and
// works.
void refused_with(const std::vector<std::string>& parts) {
  const auto refused = Session::try_connect();
  NEED_STATUS(refused, no_broker);
  for (const std::string& part : parts) NEED(has(sentence_of(refused), part));
  const Session local = Session::connect({.local_ok = true});
  NEED(local.local());
  for (const std::string& part : parts) NEED(has(local.info().how, part));
  Region region = local.create(2 * MiB);
  fill(region.bytes(), 1);
  NEED(holds(region.bytes(), 1));
  NEED_STATUS(local.try_attach("any/name"), local_only);
}

void leave_stale_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  NEED(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  NEED(::listen(fd, 1) == 0);
  ::close(fd);
}

std::string sentence_of(const shmb::Result<std::shared_ptr<shmb::client::Session>>& result) {
  return result ? std::string("connected: ") + result.value()->facts().how : result.error().sentence;
}

// Without XDG_RUNTIME_DIR, and with another folder in the role of /tmp.
shmb::client::Places without_runtime_directory(const OwnBroker& own, const std::string& temporary) {
  own.enter();
  ::unsetenv("XDG_RUNTIME_DIR");
  auto places = shmb::client::process_places();
  places.temporary_dir = temporary;
  return places;
}

}  // namespace

TEST_CASE("a socket path without a broker is an error, and no other broker is tried or started") {
  const OwnBroker own;
  Child client = actor([&] {
    own.enter();
    const std::string missing = own.runtime_directory() + "/nobody";
    const auto refused = Session::try_connect({.socket = missing});
    NEED_STATUS(refused, no_broker);
    NEED(has(sentence_of(refused), missing));
    NEED(has(sentence_of(refused), "no other broker is tried"));
    ::setenv("SHMBROKER_SOCKET", missing.c_str(), 1);
    NEED(has(sentence_of(Session::try_connect()), "SHMBROKER_SOCKET"));
    std::ofstream(missing) << "a file";
    NEED_STATUS(Session::try_connect(), no_broker);
    NEED(contents(missing) == "a file");
    const std::string endless = own.runtime_directory() + "/" + std::string(100, 'x');
    const auto longer = Session::try_connect({.socket = endless});
    NEED_STATUS(longer, no_broker);
    NEED(has(sentence_of(longer), "107 bytes"));
    NEED(own.pid() < 0);
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("a runtime directory whose path is too long for a socket is reported as such") {
  const OwnBroker own;
  Child client = actor([&] {
    own.enter();
    const std::string longer = own.runtime_directory() + "/" + std::string(100, 'x');
    NEED(::mkdir(longer.c_str(), 0700) == 0);
    ::setenv("XDG_RUNTIME_DIR", longer.c_str(), 1);
    refused_with({"107 bytes"});
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("a stale socket and the lock of a dead broker are taken over") {
  const OwnBroker own;
  Child client = actor([&] {
    own.enter();
    NEED(::mkdir(own.directory().c_str(), 0700) == 0);
    leave_stale_socket(own.socket());
    leave_stale_socket(own.directory() + "/admin");
    std::ofstream(own.directory() + "/broker.lock") << "1\n";
    NEED(has(sentence_of(Session::try_connect({.start = false})), own.socket()));
    const Session session = Session::connect();
    NEED(session.info().started_by_us == 1);
    NEED_STATUS(session.try_create(4096), ok);
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("without XDG_RUNTIME_DIR, or with one of another user, the broker is in the temporary directory") {
  const OwnBroker own;
  Child client = actor([&] {
    auto places = without_runtime_directory(own, own.runtime_directory());
    const std::string expected = own.runtime_directory() + "/shmbroker-" + std::to_string(::geteuid());
    auto session = shmb::client::connect({}, places);
    NEED(session);
    NEED((*session)->facts().socket == expected + "/socket");
    struct stat facts;
    NEED(::lstat(expected.c_str(), &facts) == 0 && (facts.st_mode & 0777) == 0700);
    if (::geteuid() == 0) {
      const std::string foreign = own.runtime_directory() + "/foreign";
      NEED(::mkdir(foreign.c_str(), 0777) == 0 && ::chown(foreign.c_str(), 60001, 60001) == 0);
      places.runtime_dir_variable = foreign;
      auto again = shmb::client::connect({}, places);
      NEED(again);
      NEED((*again)->facts().socket == expected + "/socket");
      NEED(has((*again)->facts().how, "XDG_RUNTIME_DIR ignored"));
      NEED(has((*again)->facts().how, "uid 60001"));
      NEED(fs::is_empty(foreign));
    }
    for (const pid_t pid : processes_with(expected)) ::kill(pid, SIGTERM);
    session->reset();
    NEED(eventually([&] { return processes_with(expected).empty(); }));
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("a directory of another user, a link, a file or an open door in the broker's place is not used nor touched") {
  const OwnBroker own;
  Child client = actor([&] {
    const auto places = without_runtime_directory(own, own.runtime_directory());
    const std::string path = own.runtime_directory() + "/shmbroker-" + std::to_string(::geteuid());
    const std::string elsewhere = own.runtime_directory() + "/elsewhere";
    NEED(::mkdir(elsewhere.c_str(), 0700) == 0);
    const auto is_refused = [&](const std::string& why) {
      const auto session = shmb::client::connect({}, places);
      NEED(!session && session.error().status == shmb::Status::no_broker);
      NEED(has(sentence_of(session), path));
      NEED(has(sentence_of(session), why));
      shmb::client::ConnectOptions local;
      local.local_ok = true;
      NEED(shmb::client::connect(local, places).value()->is_local());
      NEED(processes_with(path).empty());
    };
    NEED(::symlink(elsewhere.c_str(), path.c_str()) == 0);
    is_refused("is not a directory");
    NEED(fs::is_empty(elsewhere));
    NEED(fs::is_symlink(path));
    fs::remove(path);
    std::ofstream(path) << "a file";
    is_refused("is not a directory");
    NEED(contents(path) == "a file");
    fs::remove(path);
    NEED(::mkdir(path.c_str(), 0700) == 0 && ::chmod(path.c_str(), 0777) == 0);
    is_refused("can be written by others");
    NEED(fs::is_empty(path));
    if (::geteuid() != 0) return;
    NEED(::chmod(path.c_str(), 0700) == 0 && ::chown(path.c_str(), 60001, 60001) == 0);
    // Another user's: it is left alone, and the broker is in a second place that only we could make.
    const auto second = shmb::client::connect({}, places);
    NEED(second);
    NEED((*second)->facts().socket.starts_with(path + "-"));
    NEED(has((*second)->facts().how, path + " belongs to uid 60001"));
    NEED(fs::is_empty(path));
    const pid_t broker = (*second)->facts().broker_pid;
    NEED(broker > 0 && ::kill(broker, SIGTERM) == 0);
    NEED(eventually([&] { return ::kill(broker, 0) != 0; }));
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("a broker of another user behind our path is not trusted with a greeting") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  const OwnBroker own;
  BrokerOptions options;
  options.system = true;
  const BrokerFixture foreign(options);
  REQUIRE_MESSAGE(foreign.running(), foreign.log());
  Child client = actor([&] {
    own.enter();
    NEED(::mkdir(own.directory().c_str(), 0700) == 0);
    NEED(::symlink(foreign.socket().c_str(), own.socket().c_str()) == 0);
    const auto refused = Session::try_connect({.start = false});
    NEED_STATUS(refused, no_broker);
    NEED(has(sentence_of(refused), "belongs to a process of uid 65534"));
    NEED_STATUS(Session::try_connect({.socket = own.socket()}), ok);  // who names it means it
  });
  CHECK(client.wait() == 0);
}

TEST_CASE("a full or read-only runtime directory is reported, and one that is full but has inodes left still serves") {
  if (!can_mount()) SKIP_CASE("mounting is not allowed here");
  const auto in = [](const std::string& options, bool read_only, const std::function<void(const OwnBroker&)>& body) {
    const OwnBroker own;
    Child client = actor([&] {
      own.enter();
      NEED(enter_mount_namespace());
      const std::string runtime = own.runtime_directory() + "/run";
      NEED(::mkdir(runtime.c_str(), 0700) == 0);
      NEED(mount_tmpfs(runtime, options + ",mode=0700"));
      ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
      if (read_only) NEED(::mount("none", runtime.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0);
      body(own);
      for (const pid_t pid : processes_with(runtime)) ::kill(pid, SIGTERM);
      NEED(eventually([&] { return processes_with(runtime).empty(); }));
    });
    CHECK(client.wait() == 0);
  };
  in("size=64k", true, [](const OwnBroker&) { refused_with({"/run/shmbroker", "ead-only file system"}); });
  in("size=64k,nr_inodes=1", false, [](const OwnBroker&) { refused_with({"/run/shmbroker", "o space left"}); });
  in("size=64k,nr_inodes=2", false, [](const OwnBroker&) { refused_with({"/run/shmbroker", "o space left"}); });
  in("size=64k,nr_inodes=4", false, [](const OwnBroker&) {
    refused_with({"ended before it was ready", "broker.lock", "the file system is full, free some space"});
  });
  in("size=4k", false, [](const OwnBroker& own) {
    const std::string filler = own.runtime_directory() + "/run/filler";
    const int fd = ::open(filler.c_str(), O_CREAT | O_WRONLY, 0600);
    NEED(::posix_fallocate(fd, 0, 4096) == 0);
    ::close(fd);
    {
      const Session session = Session::connect();
      NEED(session.info().started_by_us == 1);
      Region region = session.create(4 * MiB);
      fill(region.bytes(), 1);
      NEED(holds(session.attach(region.id()).bytes(), 1));
    }
  });
}
