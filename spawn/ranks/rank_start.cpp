// SPDX-License-Identifier: Apache-2.0
// See rank_start.hpp.
#include "spawn/ranks/rank_start.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio_ext.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/text.hpp"
#include "client/session/strategy.hpp"
#include "spawn/ranks/bytes.hpp"
#include "spawn/ranks/rank.hpp"
#include "spawn/ranks/supervisor.hpp"

namespace shmb::spawn {
namespace {

Sys<void> make_pipe(Fd& read_end, Fd& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return sys_error(errno);
  read_end = Fd::adopt(ends[0]);
  write_end = Fd::adopt(ends[1]);
  (void)::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {};
}

[[noreturn]] void give_up(const RankSetting& setting, std::int32_t local, StartFailure::Step step) {
  const StartFailure failure{local, errno, step};
  (void)!::write(setting.failures, &failure, sizeof failure);
  ::_exit(kExitNotFound);
}

int open_output(const Plan& plan, std::int32_t local, const char* which) {
  if (plan.stdio == Stdio::null) return ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const std::string path = plan.stdio_path + "." + std::to_string(plan.rank(local)) + which;
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

bool set_output(const Plan& plan, std::int32_t local, RankEnds& ends) {
  if (plan.stdio == Stdio::prefix) {
    const bool set = ::dup2(ends.out.get(), 1) == 1 && ::dup2(ends.err.get(), 2) == 2;
    ends.out.reset();  // so that a rank's close closes the pipe
    ends.err.reset();
    return set;
  }
  if (plan.stdio == Stdio::inherit) return true;
  const Fd out = Fd::adopt(open_output(plan, local, ".out")), err = Fd::adopt(open_output(plan, local, ".err"));
  if (!out || !err) return false;
  return ::dup2(out.get(), 1) == 1 && ::dup2(err.get(), 2) == 2;
}

// The channels and outputs of all ranks, for the fork server to pass on: "rank:5:INODE/7/8,...". The fork server prints
// to the first rank's output.
std::string hand_over(const Plan& plan, std::vector<RankEnds>& all, const RankSetting& setting) {
  std::string text;
  const auto give = [](const Fd& fd) {
    if (fd) (void)::fcntl(fd.get(), F_SETFD, 0);
    return "/" + std::to_string(fd.get());
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    RankEnds& one = all[i];
    const auto local = static_cast<std::int32_t>(i);
    if (plan.stdio == Stdio::files && i > 0) {
      one.out = Fd::adopt(open_output(plan, local, ".out"));
      one.err = Fd::adopt(open_output(plan, local, ".err"));
      if (!one.out || !one.err) give_up(setting, local, StartFailure::output);
    }
    (void)::fcntl(one.control.get(), F_SETFD, 0);
    text += (text.empty() ? "" : ",") + control_text(Role::rank, one.control.get()) + give(one.out) + give(one.err);
  }
  return text;
}

// noexcept: only the copy of the parent's program could catch an exception from here, and that must not continue.
[[noreturn]] void become_rank(const Plan& plan, std::int32_t local, RankEnds& ends, const RankSetting& setting,
                              pid_t supervisor) noexcept {
  // If both of the pair are killed at once, this ends at least the rank. Its children do not inherit it (prctl(2)).
  (void)sys::set_parent_death_signal(SIGKILL);
  if (::getppid() != supervisor) ::_exit(kExitFailed);
  if (!plan.directory.empty() && ::chdir(plan.directory.c_str()) != 0) give_up(setting, local, StartFailure::directory);
  const bool zygote = setting.role == Role::zygote;
  if (!set_output(plan, local, zygote ? setting.zygote_gives->front() : ends))
    give_up(setting, local, StartFailure::output);
  for (const auto& [name, value] : plan.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (plan.rank_variables) set_rank_variables(plan, local, setting.master_port);
  if (plan.method == Method::fork) {
    const int failures = setting.failures;
    Fd control = Fd::adopt(ends.control.get());
    const sigset_t mask = setting.mask;
    const sys::FdLimit descriptors = setting.descriptors;
    const Plan mine = plan;
    setting.forget();  // `plan`, `ends` and `setting` are still there: this process has a copy of all memory
    ::close(failures);
    become_forked_rank(std::move(control), begin_payload(mine, local));
    client::read_strategy_again();
    // Output that the parent had buffered is the parent's to write. Output of the rank must not be lost by _exit.
    ::__fpurge(stdout);
    ::__fpurge(stderr);
    if (descriptors.hard != 0) (void)sys::set_descriptor_limit(descriptors);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    const int status = mine.entry(mine.context);
    (void)std::fflush(stdout);
    (void)std::fflush(stderr);
    ::_exit(status);
  }
  if (plan.channels) {
    (void)::fcntl(ends.control.get(), F_SETFD, 0);
    ::setenv(kControlVariable, control_text(setting.role, ends.control.get()).c_str(), 1);
    if (zygote) ::setenv(kZygoteVariable, hand_over(plan, *setting.zygote_gives, setting).c_str(), 1);
  } else {
    ::unsetenv(kControlVariable);  // of an outer supervisor
  }
  std::vector<char*> arguments;
  for (const std::string& word : plan.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (setting.descriptors.hard != 0) (void)sys::set_descriptor_limit(setting.descriptors);
  ::sigprocmask(SIG_SETMASK, &setting.mask, nullptr);
  if (plan.program.empty()) ::execvp(arguments[0], arguments.data());
  else ::execv(plan.program.c_str(), arguments.data());
  give_up(setting, local, StartFailure::exec);
}

}  // namespace

std::string sentence_of(const StartFailure& failure, const Plan& plan) {
  const std::string why = errno_text(failure.errno_value);
  switch (failure.step) {
    case StartFailure::directory:
      return "cannot enter the directory " + quoted(plan.directory) + ": " + why;
    case StartFailure::output:
      return "cannot open the output of rank " + std::to_string(plan.rank(failure.local)) + " (" +
             quoted(plan.stdio_path) + "): " + why;
    case StartFailure::exec:
      break;
  }
  if (failure.errno_value == E2BIG)
    return "cannot run " + quoted(plan.command.front()) +
           ": arguments and environment together are longer than the kernel takes (" + why + "); pass less";
  return "cannot run " + quoted(plan.program.empty() ? plan.command.front() : plan.program) + ": " + why;
}

Sys<RankEnds> prepare_rank(const Plan& plan, Rank& rank, Role role) {
  RankEnds ends;
  if (plan.channels) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return sys_error(errno);
    rank.link = Link(Fd::adopt(pair[0]));
    ends.control = Fd::adopt(pair[1]);
    // Commands need none. A rank born by fork has its copy of the plan. Ranks of a fork server get it from the fork
    // server.
    if (plan.method == Method::spawn || role == Role::zygote)
      rank.link.send(Op::begin, 0, begin_payload(plan, rank.local));
  }
  if (plan.stdio == Stdio::prefix && role != Role::zygote) {
    SHMB_TRY_VOID(make_pipe(rank.out, ends.out));
    SHMB_TRY_VOID(make_pipe(rank.err, ends.err));
  }
  return ends;
}

std::string begin_payload(const Plan& plan, std::int32_t local) {
  Packer out;
  out.number(plan.rank(local)).number(local).number(plan.world()).number(plan.nprocs).number(plan.shard);
  out.text(plan.function).text(plan.arguments);
  return out.number(plan.parent_epoch).number(plan.parent_session).take();
}

// The variables of torchrun. Those that describe this launch are always set, the others only if they are unset. No
// agent's store runs at MASTER_PORT, so TORCHELASTIC_USE_AGENT_STORE of an outer torchrun would make rank 0 wait for
// one.
void set_rank_variables(const Plan& plan, std::int32_t local, std::uint16_t master_port) {
  const std::string rank = std::to_string(plan.rank(local)), world = std::to_string(plan.world());
  const std::pair<const char*, std::string> launch[] = {
      {"RANK", rank},
      {"ROLE_RANK", rank},
      {"LOCAL_RANK", std::to_string(local)},
      {"WORLD_SIZE", world},
      {"ROLE_WORLD_SIZE", world},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.nprocs)},
      {"GROUP_RANK", std::to_string(plan.shard)},
      {"GROUP_WORLD_SIZE", std::to_string(plan.shards)},
      {"NODE_RANK", std::to_string(plan.shard)},
      {"MASTER_ADDR", plan.master_address},
      {"MASTER_PORT", std::to_string(master_port)},
  };
  for (const auto& [name, value] : launch) ::setenv(name, value.c_str(), 1);
  const auto named = [&](const auto& one) { return one.first == "TORCHELASTIC_USE_AGENT_STORE"; };
  if (std::ranges::none_of(plan.environment, named)) ::setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
  const std::pair<const char*, std::string> defaults[] = {
      {"ROLE_NAME", "default"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", plan.group_name.empty() ? "none" : plan.group_name},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
  };
  for (const auto& [name, value] : defaults) ::setenv(name, value.c_str(), 0);
  // Several ranks, each with as many threads as cores, would slow each other down.
  if (plan.nprocs > 1) ::setenv("OMP_NUM_THREADS", "1", 0);
}

Sys<std::uint16_t> free_port() {
  const Fd socket = Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return sys_error(errno);
  return ntohs(address.sin_port);
}

Sys<pid_t> start_rank(const Plan& plan, const Rank& rank, RankEnds& ends, const RankSetting& setting) {
  const pid_t supervisor = ::getpid();
  const pid_t pid = setting.cgroup->fork(plan.method != Method::fork);
  if (pid < 0) return sys_error(errno);
  if (pid == 0) become_rank(plan, rank.local, ends, setting, supervisor);
  return pid;
}

}  // namespace shmb::spawn
