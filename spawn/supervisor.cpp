// SPDX-License-Identifier: Apache-2.0
// Guard and supervisor (see supervisor.hpp): two small event loops in two processes. The guard takes the supervisor's
// part over when that one is killed, which works because both are subreapers: the orphans come to the guard.
#include "spawn/supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "spawn/ending.hpp"
#include "spawn/process_pair.hpp"

namespace shmb::spawn {
namespace {

int status_of(const sys::ExitInfo& how) { return how.killed ? 128 + how.code : how.code; }

std::string count_text(std::size_t count) {
  return count == 1 ? "1 process of it is" : std::to_string(count) + " processes of it are";
}

std::string left_behind(const std::vector<Process>& left, bool ending) {
  std::string text = "the command has ended; " + count_text(left.size()) + " left (";
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < left.size() && i < kShown; ++i)
    text += (i ? ", " : "") + std::to_string(left[i].pid) + " " + shmb::quoted(left[i].name);
  if (left.size() > kShown) text += ", ...";
  return text + (ending ? "): ending them" : "): waiting for them (--kill-rest would end them)");
}

// ------------------------------------------------------------------------------------------------ the command

// Between fork and exec.
[[noreturn]] void become_command(const Job& job, pid_t supervisor, pid_t job_group, const sigset_t& mask, int failure) {
  // Both killed at once: then at least the command goes. Not inherited by its children (prctl(2)).
  (void)sys::set_parent_death_signal(SIGKILL);
  if (::getppid() != supervisor) ::_exit(kExitFailed);
  (void)::setpgid(0, job_group);
  for (const auto& [name, value] : job.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : job.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execvp(arguments[0], arguments.data());
  const int reason = errno;
  (void)!::write(failure, &reason, sizeof reason);
  ::_exit(kExitNotFound);
}

struct Started {
  pid_t pid = 0;
  int exec_errno = 0;
};

Sys<Started> start_command(const Job& job, pid_t job_group, const sigset_t& mask) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return sys_error(errno);
  Fd read_end = Fd::adopt(ends[0]), write_end = Fd::adopt(ends[1]);
  const pid_t supervisor = ::getpid();
  Started started;
  started.pid = ::fork();
  if (started.pid < 0) return sys_error(errno);
  if (started.pid == 0) become_command(job, supervisor, job_group, mask, write_end.get());
  write_end.reset();
  ssize_t size;
  do size = ::read(read_end.get(), &started.exec_errno, sizeof started.exec_errno);
  while (size < 0 && errno == EINTR);
  if (size != static_cast<ssize_t>(sizeof started.exec_errno)) started.exec_errno = 0;  // closed by exec: it runs
  return started;
}

// ------------------------------------------------------------------------------------------------ the supervisor

class Supervisor {
 public:
  Supervisor(const Job& job, Reporter& reporter, Signals& signals, int guard_socket, pid_t guard)
      : job_(job), reporter_(reporter), signals_(signals), socket_(guard_socket), guard_(guard), tree_([&reporter] {
          return reporter.bystanders();
        }) {}

  void run(pid_t job_group) {
    auto guard_pidfd = sys::pidfd_open(guard_);
    if (::getppid() != guard_) return;  // killed before we looked; nothing has been started
    if (auto entered = reporter_.enter_supervisor(); !entered) return fail(kExitFailed, entered.error().sentence);
    auto started = start_command(job_, job_group, signals_.former_mask());
    if (!started) return fail(kExitFailed, "cannot start a process: " + errno_text(started.error().value));
    command_ = started->pid;
    tree_.know(command_);
    if (started->exec_errno != 0) {
      const bool absent = started->exec_errno == ENOENT || started->exec_errno == ENOTDIR;
      fail(absent ? kExitNotFound : kExitNotExecutable,
           "cannot run " + shmb::quoted(job_.command.front()) + ": " + errno_text(started->exec_errno));
      reported_ = true;
    } else {
      note(Note::command_started, command_, {});
    }
    watch(guard_pidfd ? guard_pidfd->get() : -1);
    reporter_.tree_gone();
    note(Note::tree_gone, 0, {});
  }

 private:
  void watch(int guard_pidfd) {
    while (tree_.reap([this](const sys::ChildExit& child) { ended(child); })) {
      look_at_what_is_left();
      pollfd wait[] = {{signals_.fd(), POLLIN, 0},
                       {guard_gone_ ? -1 : socket_, POLLIN, 0},
                       {guard_gone_ ? -1 : guard_pidfd, POLLIN, 0}};
      if (::poll(wait, std::size(wait), tree_.step()) <= 0) continue;
      if (wait[1].revents != 0) obey();
      if (wait[2].revents != 0) guard_went();
      if (wait[0].revents != 0) handle_signals();
    }
  }

  void ended(const sys::ChildExit& child) {
    if (child.pid != command_) return;
    command_ended_ = true;
    if (!reported_) note(Note::command_ended, status_of(child.how), {});
  }

  void look_at_what_is_left() {
    if (!command_ended_ || looked_ || tree_.ending()) return;
    looked_ = true;
    const std::vector<Process> left = tree_.left();
    if (!left.empty()) reporter_.say(left_behind(left, job_.kill_rest.has_value()));
    if (job_.kill_rest) tree_.begin_ending(SIGTERM, *job_.kill_rest);
  }

  void obey() {
    bool closed = false;
    while (auto order = hear<Order>(socket_, closed)) {
      tree_.begin_ending(order->signal, order->at_once ? 0 : job_.grace);
      if (order->at_once) tree_.hurry();
    }
    if (closed) guard_went();
  }

  void guard_went() {
    guard_gone_ = true;
    tree_.begin_ending(SIGTERM, job_.grace);
  }

  void handle_signals() {
    while (auto signal = signals_.next()) {
      if (signal->number == SIGCHLD || signal->from_terminal) continue;
      if (ends_the_tree(signal->number)) {
        tree_.begin_ending(signal->number, job_.grace);
      } else if (!command_ended_) {
        if (auto command = process(command_)) (void)signal_process(*command, signal->number);
      }
    }
  }

  void fail(int status, const std::string& sentence) { note(Note::failed, status, sentence); }

  void note(Note::Kind kind, int value, const std::string& sentence) {
    Note message{kind, value, {}};
    sentence.copy(message.sentence.data(), message.sentence.size() - 1);
    (void)tell(socket_, message);
  }

  const Job& job_;
  Reporter& reporter_;
  Signals& signals_;
  int socket_;
  pid_t guard_;
  Tree tree_;
  pid_t command_ = -1;
  bool command_ended_ = false, reported_ = false, looked_ = false, guard_gone_ = false;
};

[[noreturn]] void become_supervisor(const Job& job, Reporter& reporter, Signals& signals, int socket, pid_t guard) {
  // A process group of its own: `kill -9 %1` in a shell hits guard and command, and leaves one to end the rest. In the
  // background it may still write to the terminal, as SIGTTOU is blocked (termios(3)).
  const pid_t job_group = ::getpgrp();
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_NAME, "shmb-supervisor");
  sigset_t terminal_output;
  ::sigemptyset(&terminal_output);
  ::sigaddset(&terminal_output, SIGTTOU);
  ::sigprocmask(SIG_BLOCK, &terminal_output, nullptr);
  if (sys::set_subreaper(true)) Supervisor(job, reporter, signals, socket, guard).run(job_group);
  ::_exit(0);
}

// ------------------------------------------------------------------------------------------------ the guard

class Guard {
 public:
  Guard(const Job& job, Reporter& reporter, Signals& signals, int socket, pid_t supervisor)
      : job_(job), reporter_(reporter), signals_(signals), socket_(socket), supervisor_(supervisor), tree_([&reporter] {
          return reporter.bystanders();
        }) {}

  Outcome watch(std::vector<Process> strangers) {
    tree_.spare(std::move(strangers));
    while (!done()) {
      pollfd wait[] = {{signals_.fd(), POLLIN, 0}, {closed_ ? -1 : socket_, POLLIN, 0}};
      if (::poll(wait, std::size(wait), tree_.step()) <= 0) continue;
      listen();
      if (wait[0].revents != 0) handle_signals();
    }
    return outcome_;
  }

 private:
  // Reaps, and once the supervisor is dead either believes its last word or ends what it left.
  bool done() {
    const bool children_left = tree_.reap([this](const sys::ChildExit& child) { ended(child); });
    if (!supervisor_ended_) return !children_left;
    listen();
    if (tree_gone_) return true;
    if (!tree_.ending() && children_left) tree_.begin_ending(SIGTERM, job_.grace);
    if (children_left) return false;
    reporter_.tree_gone();
    return true;
  }

  void ended(const sys::ChildExit& child) {
    if (child.pid != supervisor_) return;
    supervisor_ended_ = true;
    listen();
    if (tree_gone_ || have_outcome_) return;
    outcome_.sentence = child.how.killed ? "the supervisor was killed by signal " + std::to_string(child.how.code) +
                                               "; the processes of the command have been ended"
                                         : "the supervisor could not do its work";
  }

  void listen() {
    while (auto note = hear<Note>(socket_, closed_)) {
      switch (note->kind) {
        case Note::command_started:
          command_ = note->value;
          break;
        case Note::command_ended:
          outcome_.exit_status = note->value;
          have_outcome_ = command_ended_ = true;
          break;
        case Note::failed:
          note->sentence.back() = '\0';
          outcome_ = {note->value, note->sentence.data()};
          have_outcome_ = true;
          break;
        case Note::tree_gone:
          tree_gone_ = true;
          break;
      }
    }
  }

  void handle_signals() {
    while (auto signal = signals_.next()) {
      if (signal->number == SIGCHLD) continue;
      if (ends_the_tree(signal->number)) {
        // The terminal's own signal has reached the command too, which may live on (a debugger, a shell).
        if (signal->from_terminal && !command_ended_) continue;
        end(signal->number);
      } else if (command_ > 0 && !command_ended_) {
        if (auto command = process(command_)) (void)signal_process(*command, signal->number);
      }
    }
  }

  void end(int signal) {
    const bool again = asked_to_end_;
    asked_to_end_ = true;
    if (supervisor_ended_) {
      tree_.begin_ending(signal, job_.grace);
      if (again) tree_.hurry();
      return;
    }
    (void)tell(socket_, Order{signal, again});
    if (auto supervisor = process(supervisor_)) (void)signal_process(*supervisor, SIGCONT);  // should it be stopped
  }

  const Job& job_;
  Reporter& reporter_;
  Signals& signals_;
  int socket_;
  pid_t supervisor_;
  Tree tree_;
  pid_t command_ = -1;
  bool closed_ = false, supervisor_ended_ = false, tree_gone_ = false;
  bool have_outcome_ = false, command_ended_ = false, asked_to_end_ = false;
  Outcome outcome_;
};

Outcome failure(Errno code, const char* what) {
  return {kExitFailed, std::string("cannot ") + what + ": " + errno_text(code.value)};
}

}  // namespace

Outcome run_job(const Job& job, Reporter& reporter) {
  if (job.command.empty()) return {kExitFailed, "no command was given"};
  Signals signals;
  if (signals.fd() < 0) return failure(Errno{errno}, "listen to signals");
  auto sockets = sys::seqpacket_pair();
  if (!sockets) return failure(sockets.error(), "make a socket pair");
  // Children from before (`sh -c 'daemon & exec shmbroker run ...'`) are not the command's.
  std::vector<Process> strangers = children(::getpid(), {}).value_or(std::vector<Process>{});
  if (auto subreaper = sys::set_subreaper(true); !subreaper) return failure(subreaper.error(), "become a subreaper");
  const pid_t guard = ::getpid();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) return failure(Errno{errno}, "start the supervisor");
  if (supervisor == 0) {
    (*sockets)[0].reset();
    become_supervisor(job, reporter, signals, (*sockets)[1].get(), guard);
  }
  (*sockets)[1].reset();
  Outcome outcome = Guard(job, reporter, signals, (*sockets)[0].get(), supervisor).watch(std::move(strangers));
  (void)sys::set_subreaper(false);
  return outcome;
}

}  // namespace shmb::spawn
