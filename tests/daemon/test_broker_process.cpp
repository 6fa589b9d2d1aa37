// SPDX-License-Identifier: Apache-2.0
// shmbrokerd as a process: start, one instance, stop, idle end, and the sentence for each way a start can fail.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/skip.hpp"

using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::RawClient;

namespace {

std::map<std::string, std::string> status_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::map<std::string, std::string> facts;
  for (std::string line; std::getline(file, line);) {
    std::size_t colon = line.find(':');
    std::string value = line.substr(colon + 1);
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t") + 1);
    facts[line.substr(0, colon)] = value;
  }
  return facts;
}

struct Ran {
  int status = -1;
  std::string text;  // both outputs
};

// The broker to its end, which must come by itself.
Ran run_broker(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {}) {
  arguments.insert(arguments.begin(), BrokerFixture::program());
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  harness::TempDir folder;
  std::string output = folder.file("out");
  auto child = harness::Child::run([&] {
    int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(words[0], words.data());
    return 127;
  });
  Ran ran;
  ran.status = child.wait();
  std::ifstream file(output);
  ran.text.assign(std::istreambuf_iterator<char>(file), {});
  return ran;
}

}  // namespace

TEST_CASE("a broker greets, creates, and has empty books after the client, on each engine and kernel") {
  for (const BrokerOptions& options : harness::engines_and_kernels()) {
    CAPTURE(harness::name_of(options));
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    RawClient client = RawClient::connect(broker.socket());
    REQUIRE(client.connected());
    REQUIRE(client.hello().ok());
    auto created = client.create(4096);
    CHECK(created.ok());
    CHECK(created.fds.size() == 1);
    auto status = client.status();
    REQUIRE(status.ok());
    CHECK(status.fixed<shmbw_status_reply>().regions == 1);
    CHECK(status.fixed<shmbw_status_reply>().engine ==
          (options.engine == "epoll" ? SHMBW_ENGINE_EPOLL : SHMBW_ENGINE_IO_URING));
  }
}

TEST_CASE("a system broker started by root ends as its own uid, with nothing but CAP_SYS_RESOURCE") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root with CAP_SETUID");
  BrokerOptions options;
  options.system = true;
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  std::map<std::string, std::string> facts = status_of(broker.pid());
  CHECK(facts["Uid"] == "65534\t65534\t65534\t65534");
  CHECK(facts["Gid"] == "65534\t65534\t65534\t65534");
  CHECK(facts["Groups"] == "");
  CHECK(facts["NoNewPrivs"] == "1");
  // CAP_SYS_RESOURCE is bit 24; whether it may be kept depends on the machine.
  for (const char* set : {"CapPrm", "CapEff"})
    CHECK((facts[set] == "0000000001000000" || facts[set] == "0000000000000000"));
  CHECK(facts["CapInh"] == "0000000000000000");
  CHECK(facts["CapAmb"] == "0000000000000000");
  CHECK((facts["CapBnd"] == "0000000001000000" || facts["CapBnd"] == "0000000000000000"));
  struct stat entry{};
  REQUIRE(::stat(broker.socket().c_str(), &entry) == 0);
  CHECK(entry.st_uid == 65534);
  CHECK((entry.st_mode & 07777) == 0666);
  REQUIRE(::stat(broker.admin().c_str(), &entry) == 0);
  CHECK((entry.st_mode & 07777) == 0600);
  // Not dumpable: its /proc entries belong to root, and nobody of its uid may ptrace it.
  REQUIRE(::stat(("/proc/" + std::to_string(broker.pid()) + "/fd").c_str(), &entry) == 0);
  CHECK(entry.st_uid == 0);
  auto other = harness::Child::run_as(1234, 1234, [&] {
    RawClient client = RawClient::connect(broker.socket());
    if (!client.connected() || !client.hello().ok()) return 1;
    return RawClient::connect(broker.admin()).connected() ? 2 : 0;
  });
  CHECK(other.wait() == 0);
}

TEST_CASE("a private broker keeps its uid, loses every capability but one, and says what it cannot do") {
  BrokerFixture broker;
  REQUIRE_MESSAGE(broker.running(), broker.log());
  std::map<std::string, std::string> facts = status_of(broker.pid());
  CHECK(facts["NoNewPrivs"] == "1");
  CHECK((facts["CapPrm"] == "0000000001000000" || facts["CapPrm"] == "0000000000000000"));
  RawClient client = RawClient::connect(broker.socket());
  REQUIRE(client.hello().ok());
  CHECK(client.status().rest().find("private mode") != std::string::npos);
}

TEST_CASE("one directory has one broker, and a killed one's socket is taken over") {
  BrokerFixture first;
  REQUIRE(first.running());
  Ran second = run_broker({"--private", "--directory", first.directory()});
  CHECK(second.status == 1);
  CHECK(second.text.find("another shmbrokerd (pid " + std::to_string(first.pid()) + ") serves") != std::string::npos);
  CHECK(RawClient::connect(first.socket()).hello().ok());
  first.kill();
  CHECK(std::filesystem::exists(first.socket()));
  Ran third = run_broker({"--private", "--directory", first.directory(), "--idle-exit", "10ms"});
  CHECK_MESSAGE(third.status == 0, third.text);
  CHECK_FALSE(std::filesystem::exists(first.socket()));
}

TEST_CASE("a stopped broker leaves no socket and exits with 0") {
  BrokerFixture broker;
  REQUIRE(broker.running());
  RawClient client = RawClient::connect(broker.socket());
  REQUIRE(client.hello().ok());
  CHECK(broker.stop() == 0);
  CHECK_FALSE(std::filesystem::exists(broker.socket()));
  CHECK_FALSE(std::filesystem::exists(broker.admin()));
  CHECK(client.receive().kind == harness::RawPacket::Kind::end_of_file);
}

TEST_CASE("a private broker ends when it has been idle for a while") {
  BrokerOptions options;
  options.arguments = {"--idle-exit", "50ms"};
  BrokerFixture broker(options);
  REQUIRE(broker.running());
  CHECK(broker.wait_end() == 0);
}

TEST_CASE("--check, --version and --help answer and do not serve") {
  harness::TempDir folder;
  std::ofstream(folder.file("good")) << "[limits]\nbytes = \"10%\"\n";
  std::ofstream(folder.file("bad")) << "engine = \"epoll\"\nbites = 1\n";
  Ran good = run_broker({"--check", "--config", folder.file("good")});
  CHECK(good.status == 0);
  Ran bad = run_broker({"--check", "--config", folder.file("bad")});
  CHECK(bad.status == 1);
  CHECK(bad.text.ends_with("] error: " + folder.file("bad") + ":2: unknown key 'bites'\n"));
  CHECK(run_broker({"--version"}).text.starts_with("shmbrokerd "));
  Ran help = run_broker({"--help"});
  CHECK(help.status == 0);
  for (const char* option : {"--config", "--check", "--engine", "--directory", "--private", "--system", "--user",
                             "--ready-fd", "--idle-exit", "--keep", "--log-level", "--version", "--help"})
    CHECK_MESSAGE(help.text.find(option) != std::string::npos, option);
}

TEST_CASE("a private broker reads its user's shmbroker.conf, a system broker does not") {
  harness::TempDir folder;
  const std::string file = folder.file("shmbroker.conf");
  std::ofstream(file) << "engine = \"epoll\"\nbites = 1\n";
  const std::string sentence = "] error: " + file + ":2: unknown key 'bites'\n";
  const std::map<std::string, std::string> config_home{{"XDG_CONFIG_HOME", folder.path()}};
  SUBCASE("where XDG_CONFIG_HOME says") {
    const Ran bad = run_broker({"--check"}, config_home);
    CHECK(bad.status == 1);
    CHECK_MESSAGE(bad.text.ends_with(sentence), bad.text);
  }
  SUBCASE("below the home directory, where XDG_CONFIG_HOME is no absolute path") {
    std::filesystem::create_directory(folder.file(".config"));
    std::filesystem::rename(file, folder.file(".config/shmbroker.conf"));
    const Ran bad = run_broker({"--check", "--private"}, {{"XDG_CONFIG_HOME", "here"}, {"HOME", folder.path()}});
    CHECK(bad.status == 1);
    CHECK_MESSAGE(bad.text.find("/.config/shmbroker.conf:2: unknown key") != std::string::npos, bad.text);
  }
  SUBCASE("but not where another file was named") {
    std::ofstream(folder.file("good")) << "[limits]\nbytes = \"10%\"\n";
    CHECK(run_broker({"--check", "--config", folder.file("good")}, config_home).status == 0);
  }
  SUBCASE("but not in system mode, and not to tell its version") {
    CHECK(run_broker({"--check", "--system"}, config_home).status == 0);
    CHECK(run_broker({"--version"}, config_home).status == 0);
  }
  SUBCASE("but not one of another user, which sudo may leave in the environment") {
    if (::geteuid() != 0) SKIP_CASE("not root");
    REQUIRE(::chown(file.c_str(), 12345, 12345) == 0);
    CHECK(run_broker({"--check"}, config_home).status == 0);
  }
}

TEST_CASE("a ring that fails for good ends the broker with a sentence instead of a loop") {
  if (harness::engines().size() < 2) SKIP_CASE("io_uring does not work here");
  BrokerOptions options;
  options.engine = "io_uring";
  options.seam = "fail=io_uring_enter:EIO:20:-1";
  options.expect_exit_0 = options.expect_empty_books = false;
  BrokerFixture broker(options);
  REQUIRE(broker.running());
  RawClient client = RawClient::connect(broker.socket());
  CHECK(client.hello().ok());
  for (int i = 0; i < 100 && client.status().ok(); ++i) continue;
  CHECK(broker.wait_end() == 1);
  CHECK(broker.log().find("the event loop failed") != std::string::npos);
}

TEST_CASE("clients in a PID namespace that the broker cannot see are served, and their end is seen") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  for (const char* kernel : {"6.18", "6.1"}) {
    CAPTURE(kernel);
    harness::TempDir folder;
    std::string place = folder.file("d");
    auto broker = harness::Child::run([&] {
      if (::unshare(CLONE_NEWPID) != 0) return 77;
      pid_t pid = ::fork();
      if (pid == 0) {
        std::string seam = std::string("pretend_kernel=") + kernel, program = BrokerFixture::program();
        ::execl(program.c_str(), program.c_str(), "--directory", place.c_str(), "--idle-exit", "2s", "--seam",
                seam.c_str(), "--log-level", "error", nullptr);
        ::_exit(127);
      }
      int status = 0;
      ::waitpid(pid, &status, 0);
      return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
    });
    RawClient client;
    for (int i = 0; i < 5000 && !client.connected() && !broker.wait_ended(0); ++i) {
      ::usleep(1000);
      client = RawClient::connect(place + "/socket");
    }
    if (!client.connected() && broker.wait() == 77) SKIP_CASE("cannot make a PID namespace here");
    REQUIRE(client.connected());
    CHECK(client.hello().ok());
    CHECK(client.create(4096).ok());
    client.close();
    CHECK(broker.wait() == 0);  // idle: the region went with the session
  }
}

TEST_CASE("every way a start can fail is one sentence and exit status 1, usage errors 2") {
  harness::TempDir folder;
  auto fails = [](const Ran& ran, int status, const std::string& sentence) {
    CAPTURE(ran.text);
    CHECK(ran.status == status);
    CHECK(ran.text.find(sentence) != std::string::npos);
    CHECK(std::count(ran.text.begin(), ran.text.end(), '\n') == 1);
  };
  std::string place = folder.file("d");
  SUBCASE("unknown option") { fails(run_broker({"--frobnicate"}), 2, "unknown option '--frobnicate'"); }
  SUBCASE("missing value") { fails(run_broker({"--engine"}), 2, "'--engine' needs a value"); }
  SUBCASE("wrong engine") { fails(run_broker({"--engine", "kqueue"}), 2, "is none of auto, io_uring, epoll"); }
  SUBCASE("wrong duration") { fails(run_broker({"--idle-exit", "soon"}), 2, "--idle-exit: duration"); }
  SUBCASE("wrong descriptor") { fails(run_broker({"--ready-fd", "x"}), 2, "is not a descriptor number"); }
  SUBCASE("two modes") { fails(run_broker({"--private", "--system"}), 2, "exclude each other"); }
  SUBCASE("a word") { fails(run_broker({"start"}), 2, "unexpected argument 'start'"); }
  SUBCASE("no configuration") { fails(run_broker({"--config", folder.file("none")}), 1, "No such file or directory"); }
  SUBCASE("relative directory") { fails(run_broker({"--directory", "here"}), 1, "is not an absolute path"); }
  SUBCASE("long directory") {
    fails(run_broker({"--directory", folder.path() + "/" + std::string(100, 'x')}), 1, "is too long");
  }
  SUBCASE("no parent") { fails(run_broker({"--directory", folder.file("a/b")}), 1, "its parent does not exist"); }
  SUBCASE("a file in the way") {
    std::ofstream(place) << "x";
    fails(run_broker({"--directory", place}), 1, "is not a directory");
  }
  SUBCASE("a symbolic link") {
    std::filesystem::create_symlink("/tmp", place);
    fails(run_broker({"--directory", place}), 1, "is a symbolic link");
  }
  SUBCASE("open to others") {
    std::filesystem::create_directory(place);
    ::chmod(place.c_str(), 0777);
    fails(run_broker({"--directory", place}), 1, "has mode 0777");
  }
  SUBCASE("foreign") {
    if (::geteuid() != 0) SKIP_CASE("needs root to make a foreign directory");
    std::filesystem::create_directory(place);
    REQUIRE(::chown(place.c_str(), 4321, 4321) == 0);
    fails(run_broker({"--directory", place}), 1, "belongs to uid 4321");
  }
  SUBCASE("a file where the socket goes") {
    std::filesystem::create_directory(place);
    ::chmod(place.c_str(), 0700);
    std::ofstream(place + "/socket") << "x";
    fails(run_broker({"--directory", place}), 1, "is in the way and is not a socket");
  }
  SUBCASE("no such user") {
    if (::geteuid() != 0) SKIP_CASE("needs root to start in system mode");
    fails(run_broker({"--system", "--directory", place, "--user", "no-such-user"}), 1, "is not in /etc/passwd");
  }
  SUBCASE("root itself") {
    if (::geteuid() != 0) SKIP_CASE("needs root to start in system mode");
    fails(run_broker({"--system", "--directory", place, "--user", "0"}), 1, "does not run as root");
  }
  SUBCASE("a forced engine that does not work") {
    fails(run_broker({"--directory", place, "--engine", "io_uring", "--seam", "fail=io_uring_setup:EPERM:1:-1"}), 1,
          "engine io_uring does not work here");
  }
  SUBCASE("no socket to be had") {
    fails(run_broker({"--directory", place, "--seam", "fail=bind:ENOSPC:1:-1"}), 1, "the file system is full");
  }
  SUBCASE("a read-only file system") {
    fails(run_broker({"--directory", place, "--seam", "fail=bind:EROFS:1:-1"}), 1, "read-only file system");
  }
}

TEST_CASE("where io_uring does not work, auto takes epoll and status says why") {
  BrokerOptions options;
  options.seam = "fail=io_uring_setup:EPERM:1:-1";
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  RawClient client = RawClient::connect(broker.socket());
  REQUIRE(client.hello().ok());
  auto status = client.status();
  CHECK(status.fixed<shmbw_status_reply>().engine == SHMBW_ENGINE_EPOLL);
  CHECK(status.rest().find("EPERM") != std::string::npos);
}

TEST_CASE(
    "a thousand clients and a small descriptor table: the broker lives, serves those in, tells the others why not, and "
    "takes in more as they leave") {
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    BrokerOptions options;
    options.engine = engine;
    options.config = "descriptors = 128\ndescriptors_reserved = 32\n";
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    std::vector<RawClient> clients;
    for (int i = 0; i < 1000; ++i) {
      clients.push_back(RawClient::connect(broker.socket()));
      REQUIRE(clients.back().connected());
      REQUIRE(clients.back().ask(SHMBW_OP_HELLO, RawClient::greeting()) == 1);
    }
    std::size_t in = 0;
    while (in < clients.size() && clients[in].reply(1, in <= 20 ? harness::kRawPatience : 2000).ok()) ++in;
    CHECK(in > 20);
    CHECK(in < 64);
    CHECK(clients[0].status().ok());
    CHECK(broker.descriptors() <= 128 - 16 + 8);
    CHECK(RawClient::connect(broker.admin()).hello().ok());
    clients.resize(in);  // those who were told so, and those who still wait
    for (std::size_t i = 0; i < in; ++i) {
      clients[i].close();
      bool served = false;
      for (int tries = 0; tries < 500 && !served; ++tries) {
        RawClient next = RawClient::connect(broker.socket());
        served = next.hello().ok();
        if (served) clients[i] = std::move(next);
        else ::usleep(10'000);
      }
      REQUIRE(served);
    }
  }
}
