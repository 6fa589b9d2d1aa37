// SPDX-License-Identifier: Apache-2.0
// The verbs that look at a whole host, on a busy one: 2,000 processes, 200,000 lines of maps, 10,000 regions. The floor
// is a program that makes the same reads of /proc and throws away what it read. Beside it: lsof, lsfd and ipcs.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kProcesses = 2'000, kRegionsEach = 5, kLinesEach = 100;
constexpr std::size_t kDescriptorsEach = kRegionsEach + 2;  // the broker's, with a session and a pidfd

std::size_t map_lines(const char* path) {
  std::ifstream maps(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

// One process of the scene: its regions, mapped so often that its maps have kLinesEach lines.
int be_one_of_many(const std::string& socket, int ready) {
  WireSession session = WireSession::open(socket);
  auto created = session.create(kRegionsEach, 4096);
  const auto map = [&](std::size_t i) {
    void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, created.fds[i % kRegionsEach].get(), 0);
    if (at == MAP_FAILED) give_up("mmap");
    *static_cast<char*>(at) = 1;
  };
  for (std::size_t i = 0; i < kRegionsEach; ++i) map(i);
  for (std::size_t i = map_lines("/proc/self/maps"); i < kLinesEach; ++i) map(i);
  created.fds.clear();
  must(static_cast<int>(write(ready, "x", 1)), "write");
  for (;;) pause();
}

class Scene {
 public:
  Scene(const std::string& socket, std::size_t count) {
    int ready[2];
    must(pipe(ready), "pipe");
    for (std::size_t i = 0; i < count; ++i)
      members_.push_back(Child::start(Core::any, [&] { return be_one_of_many(socket, ready[1]); }));
    close(ready[1]);
    std::array<char, 256> bytes;
    std::size_t arrived = 0;
    for (ssize_t got; arrived < count && (got = read(ready[0], bytes.data(), bytes.size())) > 0;)
      arrived += static_cast<std::size_t>(got);
    close(ready[0]);
    errno = 0;
    if (arrived != count) give_up("a process of the scene ended early");
    for (const Child& member : members_) lines_ += map_lines(fmt::format("/proc/{}/maps", member.pid()).c_str());
  }
  std::size_t lines() const { return lines_; }

 private:
  std::vector<Child> members_;
  std::size_t lines_ = 0;
};

std::size_t processes_that_fit() {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  return std::min<std::size_t>(kProcesses, (table.rlim_max - 200) / kDescriptorsEach);
}

// Reads a file to its end, as large as it is.
void read_through(const std::string& path, std::vector<char>& room) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // ended, or not ours
  while (read(file, room.data(), room.size()) > 0) {
  }
  close(file);
}

// A look at the host asks the kernel at least for this: of each process its start, its maps and its descriptors.
double floor_ms() {
  const double took = timed([] {
    std::vector<char> room(1 << 20);
    DIR* processes = opendir("/proc");
    if (processes == nullptr) give_up("/proc");
    while (const dirent* process = readdir(processes)) {
      if (process->d_name[0] < '0' || process->d_name[0] > '9') continue;
      const std::string base = std::string("/proc/") + process->d_name;
      read_through(base + "/stat", room);
      read_through(base + "/maps", room);
      DIR* descriptors = opendir((base + "/fd").c_str());
      if (descriptors == nullptr) continue;
      while (const dirent* descriptor = readdir(descriptors))
        (void)!readlinkat(dirfd(descriptors), descriptor->d_name, room.data(), room.size());
      closedir(descriptors);
    }
    closedir(processes);
    errno = 0;
  });
  return took / 1e3;
}

// Milliseconds until a program has said all that it has to say.
double run_ms(const std::string& program, const std::vector<std::string>& arguments, int worst_status) {
  const int nowhere = must(open("/dev/null", O_WRONLY | O_CLOEXEC), "/dev/null");
  int status = 0;
  const double took = timed([&] {
    Child child = Child::start(Core::any, [&]() -> int {
      dup2(nowhere, STDOUT_FILENO);
      dup2(nowhere, STDERR_FILENO);
      std::vector<char*> argv{const_cast<char*>(program.c_str())};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(program.c_str(), argv.data());
      _exit(126);
    });
    status = child.wait();
  });
  close(nowhere);
  errno = 0;
  if (status > worst_status) give_up(fmt::format("{} ended with {}", program, status));
  return took / 1e3;
}

std::optional<std::string> find_program(const std::string& name) {
  const char* path = getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::string program = std::string(rest.substr(0, end)) + "/" + name;
    if (access(program.c_str(), X_OK) == 0) return program;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  errno = 0;
  return std::nullopt;
}

struct Peer {
  const char* name;
  const char* package;
  std::vector<std::string> arguments;
  std::string program;
  Samples took;
};

std::vector<Peer> peers_here() {
  std::vector<Peer> all = {{"lsof", "lsof", {"-n", "-P", "-w"}, {}, {}},
                           {"lsfd", "util-linux-extra", {"--noheadings"}, {}, {}},
                           {"ipcs", "util-linux", {"-m"}, {}, {}}};
  std::vector<Peer> found;
  for (Peer& peer : all) {
    if (auto program = find_program(peer.name)) {
      peer.program = *program;
      found.push_back(std::move(peer));
    } else {
      fmt::print("    without {}: it is missing (Debian's {})\n", peer.name, peer.package);
    }
  }
  return found;
}

}  // namespace

void run_tool(Bench& bench) {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  table.rlim_cur = table.rlim_max;
  setrlimit(RLIMIT_NOFILE, &table);
  const std::size_t count = bench.settings().quick ? 20 : processes_that_fit();
  if (!bench.settings().quick && count < kProcesses)
    fmt::print("    {} processes: the hard limit of {} descriptors allows the broker no more\n", count, table.rlim_max);
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine, {}, true);
  const Scene scene(broker.socket(), count);
  setenv("SHMBROKER_SOCKET", broker.socket().c_str(), 1);
  const std::vector<std::pair<const char*, std::vector<std::string>>> verbs = {
      {"leaks", {"leaks"}}, {"doctor", {"doctor"}}, {"list_all", {"list", "--all"}}};
  std::vector<Peer> peers = peers_here();
  std::vector<Pair> pairs(verbs.size());
  // Statuses up to 7 are the verbs' own findings. lsof ends with 1 where a process vanished.
  constexpr int kWorst = 7;
  for (int round = 0; round < bench.times(5); ++round) {
    for (std::size_t i = 0; i < verbs.size(); ++i) {
      pairs[i].ours.add(run_ms(SHMB_BENCH_TOOL, verbs[i].second, kWorst));
      pairs[i].floor.add(floor_ms());
    }
    for (Peer& peer : peers) peer.took.add(run_ms(peer.program, peer.arguments, kWorst));
  }
  unsetenv("SHMBROKER_SOCKET");
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    Record record = make_record(fmt::format("tool.{}", verbs[i].first), "ms", pairs[i], value_at_most(1000));
    record.engine = broker.engine();
    record.peers = {{"processes", static_cast<double>(count)},
                    {"map_lines", static_cast<double>(scene.lines())},
                    {"regions", static_cast<double>(count * kRegionsEach)}};
    for (const Peer& peer : peers) record.peers[std::string(peer.name) + "_ms"] = peer.took.median();
    bench.record(std::move(record));
  }
}

}  // namespace shmb::bench
