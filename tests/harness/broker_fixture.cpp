// SPDX-License-Identifier: Apache-2.0
// See broker_fixture.hpp.
#include "tests/harness/broker_fixture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "tests/harness/leak_guard.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/raw_client.hpp"

namespace harness {
namespace {

constexpr int kStartMilliseconds = 30'000, kEndMilliseconds = 30'000;

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The first such line of a text, or nothing.
std::string line_with(const std::string& text, std::string_view part) {
  const std::size_t at = text.find(part);
  if (at == text.npos) return {};
  const std::size_t before = text.rfind('\n', at), begin = before == text.npos ? 0 : before + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

// Between fork and exec only calls that are safe there: other threads of the test may hold any lock.
[[noreturn]] void become_broker(std::vector<char*>& words, int log, std::vector<int>& passed) {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, 0);
  ::dup2(log, 1);
  ::dup2(log, 2);
  // First above all numbers in use, because a number that is wanted may belong to another of them. Without CLOEXEC at
  // the end.
  for (int& fd : passed) fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 64);
  for (int at = 3; int fd : passed) ::dup2(fd, at++);
  ::execv(words[0], words.data());
  ::_exit(127);
}

// Beside the room of the test program. Not compiled in: a path that differs from build to build would keep the
// compiler's cache from serving several. Looked up at the start: later there may be no /proc.
const std::string kBesideTheRoom =
    std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path() /
    "daemon/shmbrokerd-testseam";

}  // namespace

std::string BrokerFixture::program() {
  const char* given = std::getenv("SHMBROKERD_TESTSEAM");
  if (given != nullptr) return given;
  return kBesideTheRoom;
}

BrokerFixture::BrokerFixture(BrokerOptions options) : options_(std::move(options)) {
  directory_ = folder_.file("d");
  socket_ = directory_ + "/socket";
  admin_ = directory_ + "/admin";
  const std::string ready = std::to_string(3 + options_.sockets.size());
  std::vector<std::string> arguments = {program(),       "--directory", directory_, "--ready-fd",  ready,  "--engine",
                                        options_.engine, "--idle-exit", "forever",  "--log-level", "debug"};
  if (options_.system) {
    // Other uids have to reach the directory through this one.
    ::chmod(folder_.path().c_str(), 0755);
    arguments.insert(arguments.end(), {"--system", "--user", std::to_string(options_.uid)});
  } else {
    arguments.push_back("--private");
  }
  if (!options_.config.empty()) {
    configure(options_.config);
    arguments.insert(arguments.end(), {"--config", config_file()});
  }
  std::string seam = options_.kernel.empty() ? "" : "pretend_kernel=" + options_.kernel;
  if (!options_.seam.empty()) seam += (seam.empty() ? "" : ";") + options_.seam;
  if (!seam.empty()) arguments.insert(arguments.end(), {"--seam", seam});
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());

  // The shell knows the pid that exec keeps.
  std::string variables;
  if (!options_.sockets.empty())
    variables += " LISTEN_PID=$$ LISTEN_FDS=" + std::to_string(options_.sockets.size()) +
                 " LISTEN_FDNAMES=" + options_.socket_names;
  if (!options_.notify.empty()) variables += " NOTIFY_SOCKET=" + options_.notify;
  if (!variables.empty())
    arguments.insert(arguments.begin(), {"/bin/sh", "-c", "export" + variables + "; exec \"$0\" \"$@\""});

  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  shmb::Fd log = shmb::Fd::adopt(::open(folder_.file("log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  shmb::Fd reader = shmb::Fd::adopt(ends[0]), writer = shmb::Fd::adopt(ends[1]);
  std::vector<int> passed = options_.sockets;
  passed.push_back(writer.get());
  pid_ = ::fork();
  if (pid_ == 0) become_broker(words, log.get(), passed);
  writer.reset();
  char newline = 0;
  pollfd entry{reader.get(), POLLIN, 0};
  if (::poll(&entry, 1, kStartMilliseconds) == 1 && ::read(reader.get(), &newline, 1) == 1 && newline == '\n') return;
  int status = 0;
  if (!ended(kEndMilliseconds, status)) {
    kill();
    return;
  }
  pid_ = -1;
  start_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool BrokerFixture::ended(int milliseconds, int& status) {
  for (int waited = 0;; ++waited) {
    pid_t got = ::waitpid(pid_, &status, WNOHANG);
    if (got == pid_ || got < 0) return true;
    if (waited >= milliseconds) return false;
    ::usleep(1000);
  }
}

void BrokerFixture::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
}

int BrokerFixture::stop() {
  if (pid_ <= 0) return -1;
  ::kill(pid_, SIGTERM);
  return wait_end();
}

void BrokerFixture::reload() {
  if (pid_ > 0) ::kill(pid_, SIGHUP);
}

void BrokerFixture::configure(const std::string& text) const { write_file(config_file(), text); }

int BrokerFixture::wait_end() {
  if (pid_ <= 0) return -1;
  int status = 0;
  if (!ended(kEndMilliseconds, status)) {
    kill();
    return -1;
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

BrokerFixture::~BrokerFixture() {
  std::string wrong;
  const auto add = [&](const std::string& what) { wrong += (wrong.empty() || what.empty() ? "" : "; ") + what; };
  if (pid_ > 0) {
    if (options_.expect_empty_books) add(books());
    const int status = stop();
    if (options_.expect_exit_0 && status != 0) add("the broker ended with status " + std::to_string(status));
  }
  // Also of a broker that was killed.
  add(line_with(log(), "own bug"));
  if (wrong.empty()) return;
  std::fprintf(stderr, "--- log of the broker (%s):\n%s---\n", name_of(options_).c_str(), log().c_str());
  report_leak(wrong);
}

std::string BrokerFixture::books(int milliseconds) const {
  RawClient client = RawClient::connect(admin_);
  if (!client.connected() || !client.hello().ok()) return "the broker does not answer on its admin socket";
  std::string wrong;
  for (int waited = 0; waited <= milliseconds; waited += 5) {
    RawPacket answer = client.status();
    if (!answer.ok()) return "the broker does not answer STATUS on its admin socket";
    auto now = answer.fixed<shmbw_status_reply>();
    wrong.clear();
    auto expect = [&](const char* what, std::uint64_t found, std::uint64_t due) {
      if (found != due) wrong += (wrong.empty() ? "" : ", ") + std::to_string(found) + " " + what;
    };
    expect("regions", now.regions, 0);
    expect("bytes", now.bytes, 0);
    expect("leases", now.leases, 0);
    expect("tickets", now.tickets, 0);
    expect("watches", now.watches, 0);
    expect("groups", now.groups, 0);
    expect("sessions (one is this check)", now.sessions, 1);
    if (wrong.empty()) return wrong;
    ::usleep(5000);
  }
  return "left in the broker's books: " + wrong;
}

std::string BrokerFixture::log() const { return read_text(folder_.file("log")); }

std::size_t BrokerFixture::descriptors() const { return numbers_in("/proc/" + std::to_string(pid_) + "/fd").size(); }

std::vector<std::string> engines() {
  static const std::vector<std::string> found = [] {
    std::vector<std::string> names = {"epoll"};
    BrokerOptions options;
    options.engine = "io_uring";
    if (BrokerFixture(options).running()) names.push_back("io_uring");
    return names;
  }();
  return found;
}

std::vector<BrokerOptions> engines_and_kernels() {
  std::vector<BrokerOptions> all;
  for (const std::string& engine : engines()) {
    for (const char* kernel : {"", "5.15", "6.1", "6.18"}) {
      if (engine == "io_uring" && std::string_view(kernel) == "5.15") continue;
      BrokerOptions options;
      options.engine = engine;
      options.kernel = kernel;
      all.push_back(options);
    }
  }
  return all;
}

std::string name_of(const BrokerOptions& options) {
  return options.engine + (options.kernel.empty() ? ", the real kernel" : ", kernel " + options.kernel) +
         (options.system ? ", system mode" : "");
}

}  // namespace harness
