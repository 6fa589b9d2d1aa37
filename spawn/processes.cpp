// SPDX-License-Identifier: Apache-2.0
// See processes.hpp. The guard is reaped by pidfd: a host that reaps everything itself must not make us take another
// child's end for it.
#include "spawn/processes.hpp"

#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <span>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/launch.hpp"
#include "spawn/process_pair.hpp"
#include "spawn/spawner.hpp"

namespace shmb::spawn {
namespace {

// Both of the pair were killed: nobody is left who could compute anything.
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
  auto program = client::find_program(named == nullptr ? std::nullopt : std::optional<std::string>(named),
                                      "SHMBROKER_SPAWNER", "shmbroker-spawner");
  if (!program) return std::unexpected(program.error());
  auto file = memory_file("shmb-plan", plan.encode());
  if (!file) return system_failure(file.error(), "a memory file for the plan of the ranks");
  auto pair = sys::seqpacket_pair();
  if (!pair) return system_failure(pair.error(), "a socket pair for the ranks");
  socket_ = std::move((*pair)[0]);
  const int fds[] = {file->get(), (*pair)[1].get()};
  posix_spawn_file_actions_t actions;
  if (const int failed = ::posix_spawn_file_actions_init(&actions)) return system_failure(Errno{failed}, "posix_spawn");
  // The same number on both sides: takes close-on-exec away and overwrites nothing that ranks are to inherit.
  for (const int fd : fds) (void)::posix_spawn_file_actions_adddup2(&actions, fd, fd);
  std::string arguments[] = {"shmbroker-spawner", std::to_string(fds[0]), std::to_string(fds[1])};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  const int failed = ::posix_spawn(&guard_, program->c_str(), &actions, nullptr, argv, environ);
  (void)::posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) return {};
  guard_ = -1;
  if (failed == E2BIG)
    return error(Status::limit, "cannot start " + *program +
                                    ": the environment of this process is longer than the kernel takes (" +
                                    errno_text(failed) + "); unset what the ranks do not need");
  return system_failure(Errno{failed}, "starting " + *program);
}

Result<void> Processes::fork_guard(const Plan& plan) {
  auto pair = sys::seqpacket_pair();
  if (!pair) return system_failure(pair.error(), "a socket pair for the ranks");
  guard_ = ::fork();
  if (guard_ < 0) return system_failure(Errno{errno}, "forking for the ranks");
  if (guard_ == 0) {
    (*pair)[0].reset();
    ::_exit(guard_ranks(plan, std::move((*pair)[1])));
  }
  socket_ = std::move((*pair)[0]);
  return {};
}

Result<std::unique_ptr<Processes>> Processes::start(Plan plan, client::Deadline deadline) {
  plan.parent = ::getpid();
  if (auto possible = check(plan); !possible) return std::unexpected(possible.error());
  std::unique_ptr<Processes> made(new Processes);
  made->owner_ = ::getpid();
  auto begun = plan.method == Method::fork ? made->fork_guard(plan) : made->start_guard(plan);
  if (!begun) return std::unexpected(begun.error());
  if (auto pidfd = sys::pidfd_open(made->guard_)) made->guard_pidfd_ = std::move(*pidfd);
  while (!made->started_ && !made->verdict_) {
    auto ready = sys::poll_readable(made->socket_.get(), deadline.left());
    if (!ready) return system_failure(ready.error(), "waiting for the ranks to start");
    if (!*ready) return error(Status::deadline, "the ranks were not started before the deadline; they have been ended");
    if (!made->listen() && !made->verdict_) made->verdict_ = nobody_left();
  }
  if (made->verdict_ && !made->verdict_->started) {
    Error why = made->verdict_->why;
    made.reset();
    return std::unexpected(std::move(why));
  }
  return made;
}

bool Processes::listen() {
  for (;;) {
    Told told;
    Fd file;
    auto got = sys::receive_one(socket_.get(), std::as_writable_bytes(std::span(&told, 1)), file);
    if (!got) return got.error().value == EAGAIN || got.error().value == EWOULDBLOCK;
    if (got->end_of_file || got->size != sizeof told) return false;
    if (told.kind == Told::ranks_started) {
      started_ = true;
      pids_.assign(told.pids.begin(), told.pids.begin() + std::min<int>(told.count, kMostRanks));
    } else if (!verdict_ && file) {
      auto bytes = contents(file.get());
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

void Processes::reap() {
  if (reaped_ || guard_ <= 0) return;
  reaped_ = true;
  if (guard_pidfd_) (void)sys::reap_pidfd(guard_pidfd_.get());
  else (void)sys::wait_pid(guard_, true, false);
  guard_pidfd_.reset();
}

Result<const Verdict*> Processes::join(client::Deadline deadline, std::int64_t voluntary, std::int64_t grace) {
  if (owner_ != ::getpid()) return error(Status::forked, "a forked child cannot wait for the ranks of its parent");
  if (voluntary >= 0 || grace >= 0) {
    std::lock_guard lock(mutex_);
    if (!done_) (void)tell(socket_.get(), Order{0, 0, voluntary, grace});
  }
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (done_) return &*verdict_;
      // A verdict is not all: end of file says that supervisor and guard are gone too.
      if (!listen()) {
        if (!verdict_) verdict_ = nobody_left();
        reap();
        done_ = true;
        return &*verdict_;
      }
    }
    if (deadline.passed()) return nullptr;
    auto ready = sys::poll_readable(socket_.get(), deadline.left());
    if (!ready) return system_failure(ready.error(), "waiting for the ranks");
  }
}

void Processes::end(bool at_once) {
  std::lock_guard lock(mutex_);
  if (owner_ == ::getpid() && !done_) (void)tell(socket_.get(), Order{SIGTERM, at_once});
}

Processes::~Processes() {
  if (owner_ != ::getpid()) return;  // a forked child's copy
  if (!done_ && socket_) {
    // End of file would do; the order comes first because another child of the host may have a copy of the socket.
    end(false);
    (void)join(client::Deadline::after(client::kForever), -1, -1);
  }
  reap();
}

}  // namespace shmb::spawn
