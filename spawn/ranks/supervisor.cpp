// SPDX-License-Identifier: Apache-2.0
// The guard (see supervisor.hpp), and the traffic between the two processes. If the supervisor is killed, the guard
// takes over its part. That works because both are subreapers: the orphans become the guard's children.
#include "spawn/ranks/supervisor.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "spawn/ranks/ending.hpp"
#include "spawn/ranks/overseer.hpp"
#include "spawn/ranks/process_pair.hpp"

namespace shmb::spawn {
namespace {

constexpr std::size_t kBriefFailures = 2;

[[noreturn]] void become_supervisor(const Plan& plan, Reporter& reporter, Signals& signals, int socket, pid_t guard,
                                    Parent parent, JobCgroup& cgroup) noexcept {
  (void)::prctl(PR_SET_NAME, "shmb-supervisor");
  if (sys::set_subreaper(true)) oversee(plan, reporter, signals, socket, guard, parent, cgroup);
  ::_exit(0);
}

class Guard {
 public:
  Guard(const Plan& plan, Reporter& reporter, Signals& signals, int socket, pid_t supervisor, Parent parent,
        const JobCgroup& cgroup)
      : plan_(plan),
        reporter_(reporter),
        signals_(signals),
        socket_(socket),
        supervisor_(supervisor),
        parent_(parent),
        tree_([&reporter] { return reporter.bystanders(); }, cgroup) {}

  Outcome watch(std::vector<Process> strangers) {
    tree_.spare(std::move(strangers));
    tree_.know(supervisor_);
    while (!done()) {
      pollfd wait[] = {{signals_.fd(), POLLIN, 0},
                       {closed_ ? -1 : socket_, POLLIN, 0},
                       {parent_gone_ ? -1 : parent_.pidfd, POLLIN, 0},
                       {tree_.others(), POLLPRI, 0}};
      if (::poll(wait, std::size(wait), tree_.step()) <= 0) continue;
      listen();
      if (wait[0].revents != 0) handle_signals();
      if (wait[2].revents != 0) {
        parent_gone_ = true;
        wake_supervisor();
      }
    }
    return outcome_;
  }

 private:
  // Reaps. Once the supervisor is dead, it either uses its last report or ends what it left.
  bool done() {
    const bool children_left = tree_.reap([this](const sys::ChildExit& child) { ended(child); });
    if (!supervisor_ended_) return !children_left;
    listen();
    if (tree_gone_) return true;
    if (!tree_.ending() && children_left) tree_.begin_ending(SIGTERM, std::min(plan_.grace, kGrace));
    if (children_left) return false;
    reporter_.tree_gone();
    Failure lost;
    lost.kind = Failure::supervisor_lost;
    if (outcome_.sentence.empty()) outcome_.sentence = "the supervisor was killed";
    lost.text = lost.message = outcome_.sentence;
    lost.pid = supervisor_;
    Verdict verdict;
    verdict.started = true;
    verdict.failures.push_back(std::move(lost));
    (void)deliver(parent_.socket, verdict);  // the parent takes the first that it gets
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
        case Note::ranks_ended:
          if (!have_outcome_) outcome_.exit_status = note->value;
          have_outcome_ = ranks_ended_ = true;
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
        // The terminal's signal has reached the ranks too, which may live on (a debugger, a shell).
        if (signal->from_terminal && !ranks_ended_) continue;
        end(signal->number);
      } else if (!supervisor_ended_) {
        (void)tell(socket_, Order{signal->number, 0});
      }
    }
  }

  void end(int signal) {
    const bool again = asked_to_end_;
    asked_to_end_ = true;
    if (supervisor_ended_) {
      tree_.begin_ending(signal, plan_.grace);
      if (again) tree_.hurry();
      return;
    }
    (void)tell(socket_, Order{signal, again});
    wake_supervisor();
  }

  void wake_supervisor() const {  // in case it is stopped
    if (supervisor_ended_) return;
    if (auto supervisor = process(supervisor_)) (void)signal_process(*supervisor, SIGCONT);
  }

  const Plan& plan_;
  Reporter& reporter_;
  Signals& signals_;
  int socket_;
  pid_t supervisor_;
  Parent parent_;
  Tree tree_;
  bool parent_gone_ = false;
  bool closed_ = false, supervisor_ended_ = false, tree_gone_ = false;
  bool have_outcome_ = false, ranks_ended_ = false, asked_to_end_ = false;
  Outcome outcome_;
};

Outcome failure(Errno code, const char* what) {
  return {kExitFailed, system_failure(code, std::string("cannot ") + what).error().sentence};
}

}  // namespace

void close_all_but(std::vector<int> kept) {
  std::erase_if(kept, [](int fd) { return fd < 0; });
  std::ranges::sort(kept);
  unsigned first = 0;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > first) (void)sys::close_range(first, static_cast<unsigned>(fd) - 1);
    first = static_cast<unsigned>(fd) + 1;
  }
  (void)sys::close_range(first, ~0U);
}

bool deliver(int parent, const Verdict& verdict) {
  if (parent < 0) return true;
  Told told{Told::verdict, 0, {}};
  const auto enclose = [&](const std::string& bytes) {
    if (bytes.size() > sizeof told.pids) return false;
    std::memcpy(told.pids.data(), bytes.data(), bytes.size());
    told.count = static_cast<int>(bytes.size());
    return true;
  };
  const std::string whole = verdict.encode();
  if (enclose(whole)) return sys::send(parent, std::as_bytes(std::span(&told, 1)), {}, {}, true).has_value();
  // Either side may have no free descriptor for the memory file: the most important part goes in the message itself.
  Verdict brief = verdict;
  brief.results.clear();
  if (brief.failures.size() > kBriefFailures) brief.failures.resize(kBriefFailures);
  constexpr std::size_t kBriefText = 256;
  for (Failure& one : brief.failures) {
    one.cut = true;
    one.trace.clear();
    one.type.resize(std::min(one.type.size(), kBriefText));
    one.text.resize(std::min(one.text.size(), kBriefText));
    one.message.resize(std::min(one.message.size(), 2 * kBriefText));
  }
  brief.why.sentence.resize(std::min(brief.why.sentence.size(), 2 * kBriefText));
  (void)enclose(brief.encode());
  auto file = memory_file("shmb-verdict", whole);
  std::vector<int> fds;
  if (file) fds.push_back(file->get());
  return sys::send(parent, std::as_bytes(std::span(&told, 1)), {}, fds, true).has_value();
}

Outcome run_job(const Plan& plan, Reporter& reporter, Parent parent) {
  if (auto possible = check(plan); !possible) return {kExitFailed, possible.error().sentence};
  Signals signals(plan.method == Method::fork);
  if (signals.fd() < 0) return failure(Errno{errno}, "listen to signals");
  auto sockets = sys::seqpacket_pair();
  if (!sockets) return failure(sockets.error(), "make a socket pair");
  // Children from before (`sh -c 'daemon & exec shmbroker run ...'`) do not belong to the ranks. A guard that a parent
  // has started has none, and need not look at every process of the host.
  std::vector<Process> strangers;
  if (parent.socket < 0) strangers = children(::getpid(), {}).value_or(std::vector<Process>{});
  if (auto subreaper = sys::set_subreaper(true); !subreaper) return failure(subreaper.error(), "become a subreaper");
  const pid_t guard = ::getpid();
  JobCgroup cgroup = JobCgroup::make();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) {
    const Errno code{errno};
    cgroup.remove();
    return failure(code, "start the supervisor");
  }
  if (supervisor == 0) {
    (*sockets)[0].reset();
    become_supervisor(plan, reporter, signals, (*sockets)[1].get(), guard, parent, cgroup);
  }
  (*sockets)[1].reset();
  if (parent.socket >= 0) {
    std::vector<int> kept{0, 1, 2, (*sockets)[0].get(), signals.fd(), parent.socket, parent.pidfd, cgroup.events()};
    for (const int fd : reporter.descriptors()) kept.push_back(fd);
    close_all_but(std::move(kept));
  }
  Outcome outcome =
      Guard(plan, reporter, signals, (*sockets)[0].get(), supervisor, parent, cgroup).watch(std::move(strangers));
  cgroup.remove();
  (void)sys::set_subreaper(false);
  return outcome;
}

}  // namespace shmb::spawn
