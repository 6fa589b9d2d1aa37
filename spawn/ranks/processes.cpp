// SPDX-License-Identifier: Apache-2.0
// See processes.hpp. The guard is reaped by pidfd. A host that reaps all children itself must not make this code take
// the status of another child.
#include "spawn/ranks/processes.hpp"

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <span>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/session/connect.hpp"
#include "client/session/launch.hpp"
#include "spawn/ranks/process_pair.hpp"
#include "spawn/ranks/spawner.hpp"

namespace shmb::spawn {
namespace {

// Longer than the supervisor takes to end the tree of a killed guard (kGrace, and SIGKILL).
constexpr std::int64_t kSupervisorAlone = kGrace + 10'000'000'000;
constexpr std::int64_t kAbandon = 1'000'000'000;

// Both processes of the pair were killed: no process is left that could compute a verdict.
Verdict nobody_left() {
  Failure lost;
  lost.kind = Failure::supervisor_lost;
  lost.text = lost.message =
      "supervisor and guard of the ranks were both killed; the ranks went by their parent-death signal";
  Verdict verdict;
  verdict.started = true;
  verdict.failures.push_back(std::move(lost));
  return verdict;
}

}  // namespace

Result<void> Processes::start_guard(const Plan& plan) {
  const char* named = ::secure_getenv("SHMBROKER_SPAWNER");
  SHMB_TRY(program, client::find_program(named == nullptr ? std::nullopt : std::optional<std::string>(named),
                                         "SHMBROKER_SPAWNER", "shmbroker-spawner"));
  auto file = memory_file("shmb-plan", plan.encode());
  if (!file) return system_failure(file.error(), "a memory file for the plan of the ranks");
  auto pair = sys::seqpacket_pair();
  if (!pair) return system_failure(pair.error(), "a socket pair for the ranks");
  socket_ = std::move((*pair)[0]);
  // Never 0 to 2, which this process may have closed. The spawner keeps those numbers free.
  auto plan_end = sys::duplicate_above(file->get(), 3), guard_end = sys::duplicate_above((*pair)[1].get(), 3);
  if (!plan_end || !guard_end)
    return system_failure((plan_end ? guard_end : plan_end).error(), "descriptors for the guard of the ranks");
  const int fds[] = {plan_end->get(), guard_end->get()};
  posix_spawn_file_actions_t actions;
  if (const int failed = ::posix_spawn_file_actions_init(&actions)) return system_failure(Errno{failed}, "posix_spawn");
  // The same number on both sides: this removes close-on-exec and overwrites nothing that ranks inherit.
  for (const int fd : fds) (void)::posix_spawn_file_actions_adddup2(&actions, fd, fd);
  std::string arguments[] = {"shmbroker-spawner", std::to_string(fds[0]), std::to_string(fds[1])};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  // The signal mask of this thread is not inherited: with SIGTERM blocked no rank could end in order.
  posix_spawnattr_t attributes;
  if (const int failed = ::posix_spawnattr_init(&attributes)) {
    (void)::posix_spawn_file_actions_destroy(&actions);
    return system_failure(Errno{failed}, "posix_spawn");
  }
  sigset_t none;
  ::sigemptyset(&none);
  (void)::posix_spawnattr_setsigmask(&attributes, &none);
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed = ::posix_spawn(&guard_, program.c_str(), &actions, &attributes, argv, environ);
  (void)::posix_spawnattr_destroy(&attributes);
  (void)::posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) return {};
  guard_ = -1;
  if (failed == E2BIG)
    return error(Status::limit, "cannot start " + program +
                                    ": the environment of this process is longer than the kernel takes (" +
                                    errno_text(failed) + "); unset what the ranks do not need");
  return system_failure(Errno{failed}, "starting " + program);
}

namespace {

// noexcept: an exception must not continue in this copy of the parent's program.
[[noreturn]] void live_as_guard(const Plan& plan, Fd socket) noexcept { ::_exit(guard_ranks(plan, std::move(socket))); }

}  // namespace

Result<void> Processes::fork_guard(const Plan& plan) {
  auto pair = sys::seqpacket_pair();
  if (!pair) return system_failure(pair.error(), "a socket pair for the ranks");
  // The parent's handlers must not run in the child, so the child begins with all signals blocked (process_pair.hpp).
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  guard_ = ::fork();
  const int failed = errno;
  if (guard_ == 0) {
    (*pair)[0].reset();
    live_as_guard(plan, std::move((*pair)[1]));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (guard_ < 0) return system_failure(Errno{failed}, "forking for the ranks");
  socket_ = std::move((*pair)[0]);
  return {};
}

Result<void> Processes::meet_broker(Plan& plan, client::Deadline deadline) {
  broker_ = plan.socket;
  if (!plan.group || plan.method == Method::command) return {};  // commands return nothing
  client::ConnectOptions options;
  options.socket = plan.socket;
  options.no_group = true;
  options.timeout = std::max<std::int64_t>(deadline.left(), 1);  // 0 would be the default
  SHMB_TRY(session, client::connect(options));
  session_ = std::move(session);
  broker_ = session_->facts().socket;
  plan.parent_epoch = epoch_ = session_->facts().epoch;
  plan.parent_session = session_->facts().session;
  return {};
}

Result<std::unique_ptr<Processes>> Processes::start(Plan plan, client::Deadline deadline) {
  plan.parent = ::getpid();
  SHMB_TRY_VOID(check(plan));
  std::unique_ptr<Processes> made(new Processes);
  made->owner_ = ::getpid();
  SHMB_TRY_VOID(made->meet_broker(plan, deadline));
  SHMB_TRY_VOID(plan.method == Method::fork ? made->fork_guard(plan) : made->start_guard(plan));
  if (auto pidfd = sys::pidfd_open(made->guard_)) made->guard_pidfd_ = std::move(*pidfd);
  while (!made->started_ && !made->verdict_) {
    SHMB_TRY(ready, made->wait(deadline));
    if (!ready) {
      made->abandon();
      return error(Status::deadline, "the ranks were not started before the deadline; they have been ended");
    }
    if (made->over() && !made->verdict_) made->verdict_ = nobody_left();
  }
  if (made->started_) return made;
  Error why = made->verdict_->why;
  if (made->verdict_->started)  // it says so, but no rank has reported
    why = Error{Status::system, 0, {}, made->verdict_->failures.at(0).message};
  made.reset();
  return std::unexpected(std::move(why));
}

bool Processes::listen() {
  for (;;) {
    Told told;
    std::vector<Fd> files;
    auto got = sys::receive(socket_.get(), std::as_writable_bytes(std::span(&told, 1)), files, false);
    if (!got) return got.error().value == EAGAIN || got.error().value == EWOULDBLOCK;
    if (got->end_of_file || got->size != sizeof told) return false;
    if (told.kind == Told::ranks_started) {
      started_ = true;
      pids_.assign(told.pids.begin(), told.pids.begin() + std::min<int>(told.count, kMostRanks));
    } else if (!verdict_) {
      // Without the file (this process may have no free descriptor) the part that fits into the message counts.
      auto bytes = !files.empty() ? contents(files.front().get())
                                  : Sys<std::string>(std::string(
                                        reinterpret_cast<const char*>(told.pids.data()),
                                        std::min<std::size_t>(static_cast<std::size_t>(told.count), sizeof told.pids)));
      auto read = bytes ? Verdict::decode(*bytes)
                        : Result<Verdict>(error(Status::system, "the verdict on the ranks cannot be read"));
      if (read) {
        verdict_ = std::move(*read);
      } else {
        verdict_ = nobody_left();
        verdict_->failures[0].text = verdict_->failures[0].message = read.error().sentence;
      }
    }
  }
}

bool Processes::over() {
  bool ended = false;
  if (guard_pidfd_) {
    auto readable = sys::poll_readable(guard_pidfd_.get(), 0);
    ended = readable && *readable;
  }
  if (!listen()) return true;
  if (!ended) return false;
  if (verdict_) return true;
  if (!last_) last_ = client::Deadline::after(kSupervisorAlone);
  return last_->passed_by_clock();
}

Result<bool> Processes::wait(client::Deadline deadline) {
  std::optional<client::Deadline> last;
  {
    std::lock_guard lock(mutex_);
    last = last_;
  }
  if (deadline.passed()) return false;
  pollfd both[] = {{socket_.get(), POLLIN, 0}, {last ? -1 : guard_pidfd_.get(), POLLIN, 0}};
  const std::int64_t left = (last ? earlier(deadline, *last) : deadline).left();
  const timespec time{left / 1'000'000'000, left % 1'000'000'000};
  const int ready = ::ppoll(both, std::size(both), left < 0 ? nullptr : &time, nullptr);
  if (ready < 0 && errno == EINTR) (void)interrupt::note();
  else if (ready < 0) return system_failure(Errno{errno}, "waiting for the ranks");
  return ready != 0 || !deadline.passed();
}

void Processes::signal_guard(int signal) const {
  siginfo_t state{};
  if (guard_pidfd_) (void)sys::pidfd_signal(guard_pidfd_.get(), signal);
  else if (::waitid(P_PID, static_cast<id_t>(guard_), &state, WEXITED | WNOHANG | WNOWAIT) == 0)
    (void)::kill(guard_, signal);  // the guard is a child of this process, so no other process has its pid
}

void Processes::abandon() {
  const interrupt::Shield shield;
  end(true);
  signal_guard(SIGCONT);
  auto ended = join(client::Deadline::after(kAbandon));
  if (ended && *ended != nullptr) return;
  signal_guard(SIGKILL);  // the supervisor, if there is one, sees that and ends the rest
  ended = join(client::Deadline::after(kAbandon));
  std::lock_guard lock(mutex_);
  if (done_) return;
  verdict_ = nobody_left();
  reap();
  done_ = true;
}

void Processes::reap() {
  if (reaped_ || guard_ <= 0) return;
  reaped_ = true;
  if (guard_pidfd_) (void)sys::reap_pidfd(guard_pidfd_.get());
  else (void)sys::wait_pid(guard_, true, false);
}

Result<const Verdict*> Processes::join(client::Deadline deadline, std::int64_t voluntary) {
  if (owner_ != ::getpid()) return error(Status::forked, "a forked child cannot wait for the ranks of its parent");
  if (voluntary >= 0) {
    std::lock_guard lock(mutex_);
    if (!done_ && voluntary != told_voluntary_ && tell(socket_.get(), Order{0, 0, voluntary}))
      told_voluntary_ = voluntary;
  }
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (done_) return &*verdict_;
      // A verdict is not enough: supervisor and guard must be gone too.
      if (over()) {
        if (!verdict_) verdict_ = nobody_left();
        reap();
        done_ = true;
        if (!verdict_->lent) session_.reset();
        return &*verdict_;
      }
    }
    if (deadline.passed()) return nullptr;
    SHMB_TRY_VOID(wait(deadline));
  }
}

Result<std::shared_ptr<client::Session>> Processes::session() {
  const std::lock_guard lock(mutex_);
  if (session_ || broker_.empty()) return session_;
  if (auto there = after_.lock()) return there;
  client::ConnectOptions options;
  options.socket = broker_;
  options.no_group = true;
  auto session = client::connect(options);
  if (!session) return std::unexpected(session.error());
  if (epoch_ != 0 && (*session)->facts().epoch != epoch_)
    return error(Status::session_lost, "the broker at " + broker_ +
                                           " is not the one that these ranks had: it was restarted, and what their "
                                           "results name ended with the one before; run them again");
  after_ = *session;
  return session;
}

void Processes::end(bool at_once) {
  if (owner_ != ::getpid()) return;  // before the lock, which another thread may have held at the fork
  std::lock_guard lock(mutex_);
  if (!done_) (void)tell(socket_.get(), Order{SIGTERM, at_once});
}

Processes::~Processes() {
  const interrupt::Shield shield;
  if (owner_ != ::getpid()) return;  // the copy in a forked child
  if (!done_ && socket_) {
    // End of file would do. The order comes first, because another child of the host may have a copy of the socket.
    end(false);
    // A stopped supervisor would not read it: the guard continues the supervisor.
    if (guard_pidfd_) (void)sys::pidfd_signal(guard_pidfd_.get(), SIGTERM);
    (void)join(client::Deadline::after(client::kForever));
  }
  reap();
}

}  // namespace shmb::spawn
