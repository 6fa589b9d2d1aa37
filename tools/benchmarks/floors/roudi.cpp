// SPDX-License-Identifier: Apache-2.0
// See roudi.hpp.
#include "tools/benchmarks/floors/roudi.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace shmb::bench {
namespace {

// Empty where the build found no libiceoryx-posh-dev: the same code is compiled either way.
constexpr std::string_view program_path = SHMB_BENCH_ICEORYX;

// Both of its outputs.
Child run(int output, const std::string& program, const std::vector<std::string>& arguments) {
  return Child::start(Core::any, [&]() -> int {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execvp(program.c_str(), argv.data());
    return 127;
  });
}

}  // namespace

Roudi::Roudi(bool wanted) {
  if (!wanted) return;
  if (program_path.empty()) {
    static bool told = false;
    if (!std::exchange(told, true)) fmt::print("    iceoryx left out: this build found no libiceoryx-posh-dev\n");
    return;
  }
  int output[2];
  must(pipe2(output, O_CLOEXEC), "pipe2");
  output_ = Fd::adopt(output[0]);
  child_ = run(output[1], "iox-roudi", {"-m", "off"});
  close(output[1]);
  std::string said;
  const double until = now_us() + 5e6;
  while (!runs_) {
    pollfd more{output_.get(), POLLIN, 0};
    const double left = (until - now_us()) / 1000;
    char text[512];
    if (left <= 0 || poll(&more, 1, static_cast<int>(left) + 1) != 1) break;
    const ssize_t got = read(output_.get(), text, sizeof text);
    if (got <= 0) break;
    said.append(text, static_cast<std::size_t>(got));
    runs_ = said.find("ready for clients") != std::string::npos;
  }
  errno = 0;
  if (!runs_) fmt::print("    iceoryx left out: its daemon iox-roudi did not start\n");
}

// Its segments are files: it must have the time to remove them.
Roudi::~Roudi() {
  if (child_.pid() <= 0) return;
  child_.kill(SIGTERM);
  child_.wait();
}

std::optional<PingPong::Times> Roudi::one_way(std::size_t bytes, bool asleep, std::uint32_t stretches,
                                              std::uint32_t in_each, std::uint32_t timed_ones) {
  if (!runs_) return std::nullopt;
  int output[2];
  must(pipe2(output, O_CLOEXEC), "pipe2");
  Child program = run(output[1], std::string(program_path),
                      {std::to_string(bytes), asleep ? "asleep" : "spinning", std::to_string(stretches),
                       std::to_string(in_each), std::to_string(timed_ones)});
  close(output[1]);
  std::string said;
  char text[512];
  for (ssize_t got; (got = read(output[0], text, sizeof text)) > 0;) said.append(text, static_cast<std::size_t>(got));
  close(output[0]);
  const int status = program.wait();
  PingPong::Times times{};
  const std::size_t at = said.rfind("times ");
  if (status == 0 && at != std::string::npos &&
      std::sscanf(said.c_str() + at, "times %lf %lf %lf %lf", &times.median, &times.p50, &times.p99, &times.p999) == 4)
    return times;
  while (said.ends_with('\n')) said.pop_back();
  fmt::print("    iceoryx left out: {} ended with {}: {}\n", program_path, status, said.substr(said.rfind('\n') + 1));
  runs_ = false;
  return std::nullopt;
}

}  // namespace shmb::bench
