// SPDX-License-Identifier: Apache-2.0
// See overseer.hpp. Events of ranks are taken in the order in which they happened. An epoll of pidfds and channels
// lists them so: the kernel appends each one to its ready list at the moment of the death or message. wait(2) would
// return deaths in the order of birth. A rank that throws sends the time.
//
// No process is notified of an end before the end is recorded here. So a failure that this notice causes is always the
// later one. Ranks can also see an end by themselves, at the broker or by a queue, before it is recorded here. They
// report that they have seen one. While such a rank may only echo another end, it is not taken as the cause.
#include "spawn/ranks/overseer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <set>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "spawn/ranks/bytes.hpp"
#include "spawn/ranks/ending.hpp"
#include "spawn/ranks/rank_start.hpp"
#include "spawn/ranks/relay.hpp"
#include "spawn/ranks/store.hpp"

namespace shmb::spawn {
namespace {

constexpr std::int64_t kStalled = 5'000'000'000;  // for a reader of the output that takes nothing while others wait

int status_of(const Failure& failure) {
  if (failure.signal != 0) return 128 + failure.signal;
  return failure.exit_code != 0 ? failure.exit_code : 1;
}

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

class Overseer {
 public:
  Overseer(const Plan& plan, Reporter& reporter, Signals& signals, int guard_socket, pid_t guard, Parent parent,
           JobCgroup& cgroup)
      : plan_(plan),
        reporter_(reporter),
        signals_(signals),
        guard_socket_(guard_socket),
        guard_(guard),
        parent_(parent),
        cgroup_(cgroup),
        tree_([&reporter] { return reporter.bystanders(); }, cgroup),
        store_(plan.nprocs, plan.rank(0),
               [this](std::int32_t local, std::uint64_t tag, Status status, const std::string& payload) {
                 ranks_[static_cast<std::size_t>(local)].link.send(Op::reply, tag, payload,
                                                                   static_cast<std::uint16_t>(status));
               }) {}

  void run() {
    auto guard_pidfd = sys::pidfd_open(guard_);
    if (::getppid() != guard_) return;  // killed before this look; nothing has been started
    if (guard_pidfd) guard_pidfd_ = std::move(*guard_pidfd);
    if (auto entered = reporter_.enter_supervisor(); !entered) {
      cannot_start(kExitFailed, entered.error());
    } else if (auto started = start(); !started) {
      cannot_start(kExitFailed, started.error());
    }
    leave_the_job();
    while (alive()) {
      look_at_what_is_left();
      wait_and_act();
    }
    cgroup_.remove();
    reporter_.tree_gone();
    (void)deliver(parent_.socket, verdict());
    finish_output();
    note(Note::tree_gone, 0, {});
    // The guard was stopped, perhaps by a person, and has nothing left to guard. So it is continued.
    if (guard_pidfd_) (void)sys::pidfd_signal(guard_pidfd_.get(), SIGCONT);
  }

 private:
  // ------------------------------------------------------------------------------------------------ starting

  Result<void> start() {
    auto order = sys::epoll();
    if (!order) return system_failure(order.error(), "epoll for the ranks");
    order_ = std::move(*order);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return system_failure(Errno{errno}, "a pipe for the ranks' start");
    failures_ = Fd::adopt(ends[0]);
    Fd write_end = Fd::adopt(ends[1]);
    RankSetting setting;
    setting.mask = signals_.former_mask();
    // The thread that spawned may have blocked any signal (helper threads often block all). A rank starts with none
    // blocked.
    if (plan_.method == Method::fork) ::sigemptyset(&setting.mask);
    setting.role = plan_.method == Method::command ? Role::command : Role::rank;
    SHMB_TRY(room, make_room());
    setting.descriptors = room;
    setting.failures = write_end.get();
    setting.master_port = plan_.master_port;
    setting.cgroup = &cgroup_;
    setting.forget = [this] { forget(); };
    if (plan_.rank_variables && plan_.master_port == 0) {
      auto port = free_port();
      if (!port) return system_failure(port.error(), "a free port for MASTER_PORT");
      setting.master_port = *port;
    }
    ranks_.resize(static_cast<std::size_t>(plan_.nprocs));
    std::vector<RankEnds> kept;
    for (std::int32_t local = 0; local < plan_.nprocs; ++local) {
      Rank& rank = ranks_[static_cast<std::size_t>(local)];
      rank.local = local;
      auto made = prepare_rank(plan_, rank, setting.role);
      if (!made) return system_failure(made.error(), "a channel for rank " + std::to_string(plan_.rank(local)));
      if (rank.link.open()) follow(rank.link.fd(), Event::word, local, EPOLLET);
      if (plan_.method == Method::forkserver) {
        kept.push_back(std::move(*made));
      } else {
        auto pid = start_rank(plan_, rank, *made, setting);
        if (!pid) return system_failure(pid.error(), "a process for rank " + std::to_string(plan_.rank(local)));
        adopt(rank, *pid);
      }
    }
    if (plan_.method == Method::forkserver) {
      auto ends_of_zygote = prepare_rank(plan_, zygote_, Role::zygote);
      if (!ends_of_zygote) return system_failure(ends_of_zygote.error(), "a channel for the fork server");
      setting.role = Role::zygote;
      setting.zygote_gives = &kept;
      auto pid = start_rank(plan_, zygote_, *ends_of_zygote, setting);
      if (!pid) return system_failure(pid.error(), "a process for the fork server");
      zygote_.pid = *pid;
      tree_.know(*pid);
    }
    if (plan_.channels && plan_.method != Method::command) start_deadline_ = from_now(plan_.start_timeout);
    return {};
  }

  // A session of its own: `kill -9 %1` in a shell hits guard and ranks, and leaves the supervisor to end the rest. It
  // comes after the ranks' births, so they stay in the caller's session and process group. A group of its own within
  // that session would not do. The kernel then takes the supervisor for the shell of the ranks' group. At the last
  // rank's end it sends SIGHUP to the whole group, with the caller, if any member is stopped (setpgid(2)).
  void leave_the_job() { (void)::setsid(); }

  // Each rank costs descriptors here. Returns the limit that the ranks get back.
  Result<sys::FdLimit> make_room() {
    auto limit = sys::descriptor_limit();
    if (!limit) return system_failure(limit.error(), "the limit of open files");
    const int pipes = plan_.stdio == Stdio::prefix ? 2 : 0;
    const int each = 2 + pipes + (plan_.method == Method::forkserver ? 1 + std::max(pipes, 2) : 0);
    constexpr std::uint64_t kOthers = 32;
    const std::uint64_t needed = static_cast<std::uint64_t>(plan_.nprocs * each) + kOthers;
    if (limit->hard < needed)
      return error(Status::limit, std::to_string(plan_.nprocs) + " ranks need " + std::to_string(needed) +
                                      " open files in their supervisor, and the hard limit is " +
                                      std::to_string(limit->hard) + " (RLIMIT_NOFILE): raise it or start fewer ranks");
    if (limit->soft >= needed) return sys::FdLimit{};
    if (auto raised = sys::set_descriptor_limit({limit->hard, limit->hard}); !raised)
      return system_failure(raised.error(), "raising the limit of open files");
    return *limit;
  }

  void adopt(Rank& rank, pid_t pid) {
    rank.pid = pid;
    tree_.know(pid);
    auto pidfd = sys::pidfd_open(pid);
    if (!pidfd) return;  // then the order of wait(2) counts
    rank.pidfd = std::move(*pidfd);
    follow(rank.pidfd.get(), Event::death, rank.local, EPOLLONESHOT);
  }

  // One entry for each event, in the order in which they happened.
  struct Event {
    enum What : std::uint32_t { death, word };
  };
  void follow(int fd, Event::What what, std::int32_t local, std::uint32_t once) {
    epoll_event event{};
    event.events = EPOLLIN | once;
    event.data.u64 = std::uint64_t{what} << 32 | static_cast<std::uint32_t>(local);
    (void)::epoll_ctl(order_.get(), EPOLL_CTL_ADD, fd, &event);
  }

  // In a rank born by fork: closes all descriptors of the supervisor.
  void forget() {
    ranks_.clear();
    zygote_ = {};
    order_.reset();
    failures_.reset();
    guard_pidfd_.reset();
    ::close(guard_socket_);
    ::close(signals_.fd());
    if (parent_.socket >= 0) ::close(parent_.socket);
    if (parent_.pidfd >= 0) ::close(parent_.pidfd);
    relay_ = {};
    cgroup_.forget();
    reporter_.forget();
  }

  // Reads what the children could not do before exec. End of file means that all have reached exec.
  void hear_failures() {
    StartFailure failure;
    for (;;) {
      const ssize_t size = ::read(failures_.get(), &failure, sizeof failure);
      if (size == static_cast<ssize_t>(sizeof failure)) {
        const int code = failure.errno_value;
        const bool absent = code == ENOENT || code == ENOTDIR;
        cannot_start(failure.step != StartFailure::exec ? kExitFailed
                     : absent                           ? kExitNotFound
                                                        : kExitNotExecutable,
                     Error{Status::system, code, {}, sentence_of(failure, plan_)});
        continue;
      }
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) return;
      failures_.reset();
      if (plan_.method != Method::forkserver) all_started();
      return;
    }
  }

  void all_started() {
    if (!cannot_start_ && !started_) {
      started_ = true;
      Told told{Told::ranks_started, plan_.nprocs, {}};
      for (const Rank& rank : ranks_) told.pids[static_cast<std::size_t>(rank.local)] = rank.pid;
      if (parent_.socket >= 0) (void)sys::send(parent_.socket, std::as_bytes(std::span(&told, 1)), {}, {}, true);
    }
    // The supervisor has copies of its parent's descriptors. They are closed, because another process may wait for an
    // end of file.
    if (parent_.socket >= 0) close_others();
  }

  void close_others() {
    std::vector<int> kept{0,
                          1,
                          2,
                          guard_socket_,
                          signals_.fd(),
                          order_.get(),
                          guard_pidfd_.get(),
                          parent_.socket,
                          parent_.pidfd,
                          cgroup_.events()};
    for (const Rank& rank : ranks_)
      for (const int fd : {rank.pidfd.get(), rank.link.fd(), rank.out.get(), rank.err.get()}) kept.push_back(fd);
    for (const int fd : reporter_.descriptors()) kept.push_back(fd);
    for (const int fd : relay_.descriptors()) kept.push_back(fd);
    close_all_but(std::move(kept));
  }

  void cannot_start(int status, const Error& why) {
    if (cannot_start_) return;
    cannot_start_ = true;
    why_ = why;
    exit_status_ = status;
    note(Note::failed, status, why.sentence);
    for (Rank& rank : ranks_) rank.told_to_end = true;
    tree_.begin_ending(SIGKILL, 0);
  }

  // ------------------------------------------------------------------------------------------------ the loop

  bool alive() {
    const bool children_left = tree_.reap([this](const sys::ChildExit& child) { reaped(child); });
    take_deaths();
    return children_left;
  }

  int patience() const {
    std::int64_t next = tree_.step_due();
    for (const auto& due : {end_due(), start_deadline_})
      if (due && (next < 0 || *due < next)) next = *due;
    return next < 0 ? -1 : poll_time(next);
  }

  void wait_and_act() {
    (void)tree_.step();
    polled_.clear();
    const auto watch = [this](int fd, short events) { polled_.push_back({fd, events, 0}); };
    watch(signals_.fd(), POLLIN);
    watch(guard_gone_ ? -1 : guard_socket_, POLLIN);
    watch(guard_gone_ ? -1 : guard_pidfd_.get(), POLLIN);
    watch(parent_gone_ ? -1 : parent_.socket, POLLIN);
    watch(parent_gone_ ? -1 : parent_.pidfd, POLLIN);
    watch(failures_.get(), POLLIN);
    watch(order_.get(), POLLIN);
    watch(zygote_.link.fd(), zygote_.link.events());
    watch(tree_.others(), POLLPRI);
    const std::size_t first = polled_.size();
    watched_.clear();
    for (Rank& rank : ranks_) {
      const auto watch_rank = [&](const Fd& fd, short events, Watched::What what) {
        if (!fd) return;
        watch(fd.get(), events);
        watched_.push_back({&rank, what});
      };
      if (rank.link.open()) {
        watch(rank.link.fd(), rank.link.events());
        watched_.push_back({&rank, Watched::link});
      }
      if (!relay_.ready()) continue;
      watch_rank(rank.out, POLLIN, Watched::out);
      watch_rank(rank.err, POLLIN, Watched::err);
    }
    const std::size_t relayed = polled_.size();
    relay_.watch(polled_);
    const int ready = ::poll(polled_.data(), polled_.size(), patience());
    act_on_time();
    if (ready <= 0) return;
    if (polled_[6].revents != 0) note_order();  // before anything is read in another order
    if (polled_[1].revents != 0) obey(guard_socket_, guard_gone_);
    if (polled_[2].revents != 0) guard_went();
    if (polled_[3].revents != 0) obey(parent_.socket, parent_gone_);
    if (polled_[4].revents != 0) parent_went();
    if (polled_[5].revents != 0) hear_failures();
    if (polled_[7].revents != 0) hear_zygote();
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const short events = polled_[first + i].revents;
      if (events == 0) continue;
      Rank& rank = *watched_[i].rank;
      switch (watched_[i].what) {
        case Watched::link:
          if ((events & POLLOUT) != 0) rank.link.flush();
          if ((events & (POLLHUP | POLLERR)) != 0) rank.link.hang_up();
          hear_rank(rank);
          break;
        case Watched::out:
        case Watched::err:
          const bool error = watched_[i].what == Watched::err;
          (void)relay_.read(error ? rank.err : rank.out, plan_.rank(rank.local), error);
          break;
      }
    }
    relay_.write(polled_, relayed);
    if (polled_[0].revents != 0) handle_signals();
  }

  void act_on_time() {
    const std::int64_t now = sys::now_monotonic();
    end_if_due();
    if (!start_deadline_ || now < *start_deadline_) return;
    start_deadline_.reset();
    if (plan_.method == Method::forkserver && !started_)
      return cannot_start(kExitFailed, Error{Status::deadline, 0, {}, never_reached("the fork server")});
    for (Rank& rank : ranks_) {
      if (rank.hello || rank.reaped) continue;
      Failure failure;
      failure.kind = Failure::never_started;
      failure.rank = plan_.rank(rank.local);
      failure.pid = rank.pid;
      failure.text = never_reached("rank " + std::to_string(failure.rank));
      failure.time = now;
      rank.told_to_end = true;
      add(std::move(failure));
    }
    end_if_due();
    say_causes();
  }

  // Writes the rest of the ranks' output, after the end has been reported. A reader that does not read delays only
  // this. It stops when a process that waits for the end is kept waiting too long, is gone, or asks for an immediate
  // end.
  void finish_output() {
    for (std::int64_t moved = sys::now_monotonic();;) {
      bool drained = true;
      for (Rank& rank : ranks_)
        for (const bool error : {false, true}) {
          Fd& pipe = error ? rank.err : rank.out;
          while (pipe && relay_.ready() && relay_.read(pipe, plan_.rank(rank.local), error)) {
          }
          drained &= !pipe || relay_.ready();
        }
      if (drained) relay_.end_lines();
      const std::size_t before = relay_.waiting();
      if (before == 0) return;
      const bool hurried = parent_.socket >= 0 || guard_gone_;
      polled_ = {{signals_.fd(), POLLIN, 0}, {guard_gone_ ? -1 : guard_socket_, POLLIN, 0}};
      polled_.push_back({parent_gone_ ? -1 : parent_.pidfd, POLLIN, 0});
      relay_.watch(polled_);
      (void)::poll(polled_.data(), polled_.size(), hurried ? poll_time(moved + kStalled) : -1);
      relay_.write(polled_, 3);
      if (polled_[2].revents != 0) parent_gone_ = true;
      while (auto order = hear<Order>(guard_socket_, guard_gone_))
        if (ends_the_tree(order->signal)) return;
      while (auto signal = signals_.next())
        if (ends_the_tree(signal->number) && !signal->from_terminal) return;
      if (relay_.waiting() < before) moved = sys::now_monotonic();
      else if (hurried && sys::now_monotonic() - moved >= kStalled) return;
    }
  }

  std::string never_reached(const std::string& who) const {
    if (plan_.method == Method::fork)
      return who + " has not begun its function within " + format_duration(plan_.start_timeout) +
             ": in a copy of a process a lock that another thread held at the fork is never released";
    return who + " never reached shmb_rank_enter within " + format_duration(plan_.start_timeout) + ": the main of " +
           quoted(plan_.program.empty() ? plan_.command.front() : plan_.program) +
           " must begin with it, and return what it says there";
  }

  void look_at_what_is_left() {
    if (ended_ < ranks_.size() || ranks_.empty() || looked_ || tree_.ending()) return;
    looked_ = true;
    const std::vector<Process> left = tree_.left();
    if (!left.empty()) relay_.say(reporter_.line(left_behind(left, plan_.kill_rest.has_value())));
    if (plan_.kill_rest) tree_.begin_ending(SIGTERM, *plan_.kill_rest);
  }

  void obey(int socket, bool& gone) {
    bool closed = false;
    while (auto order = hear<Order>(socket, closed)) {
      if (order->voluntary >= 0) voluntary_ = order->voluntary;
      if (order->signal == 0) continue;
      if (!ends_the_tree(order->signal) && order->signal != SIGKILL) {
        forward(order->signal);
        continue;
      }
      end_tree(order->signal, order->at_once ? 0 : plan_.grace);
      if (order->at_once) tree_.hurry();
    }
    if (!closed) return;
    if (&gone == &guard_gone_) guard_went();
    else parent_went();
  }

  void guard_went() {
    if (!guard_gone_ && !tree_.ending()) {
      lost_.kind = Failure::supervisor_lost;
      lost_.text = lost_.message = "the guard of the ranks was killed; the ranks have been ended";
      lost_.pid = guard_;
      lost_.time = sys::now_monotonic();
    }
    guard_gone_ = true;
    end_tree(SIGTERM, std::min(plan_.grace, kGrace));
  }

  void parent_went() {
    parent_gone_ = true;
    end_tree(SIGTERM, std::min(plan_.grace, kGrace));
  }

  void forward(int signal) {
    for (const Rank& rank : ranks_)
      if (!rank.reaped && rank.pid > 0)
        if (auto found = process(rank.pid)) (void)signal_process(*found, signal);
  }

  void handle_signals() {
    while (auto signal = signals_.next()) {
      if (signal->number == SIGCHLD || signal->from_terminal) continue;
      if (ends_the_tree(signal->number)) end_tree(signal->number, plan_.grace);
      else forward(signal->number);
    }
  }

  void end_tree(int signal, std::int64_t grace) {
    if (tree_.ending()) return;
    // A rank that is dead by now died by itself, even if its death was not seen yet.
    (void)tree_.reap([this](const sys::ChildExit& child) { reaped(child); });
    note_order();
    ending_since_ = sys::now_monotonic();
    for (Rank& rank : ranks_) {
      if (rank.reaped) continue;
      auto by_itself = exiting(rank.pid);  // its exit status is settled
      rank.told_to_end = !by_itself || !*by_itself;
    }
    tree_.begin_ending(signal, grace);
  }

  // ------------------------------------------------------------------------------------------------ what ranks say

  void hear_rank(Rank& rank) {
    if (!rank.link.open()) return;
    take_frames(rank);
    if (!rank.link.takes()) return;
    const bool more = rank.link.fill();
    if (!more) rank.link.hang_up();
    take_frames(rank);
    if (more && !rank.link.broken()) return;
    rank.link.close();
    if (rank.reaped || rank.ended) return;
    // A death is reported when it is recorded, which is soon. But a process can continue without its channel. Then
    // another rank that gets the report may fail before it does.
    if (auto soon = exiting(rank.pid); soon && *soon) return;
    for (Rank& other : ranks_)
      if (&other != &rank && other.fell == 0) other.heard = sys::now_monotonic();
    store_.gone(rank.local, "is gone");
  }

  // Takes only as many as may be answered, because the reply to a short request can be long.
  void take_frames(Rank& rank) {
    while (rank.link.takes())
      if (auto frame = rank.link.next()) take(rank, *frame);
      else return;
  }

  void take(Rank& rank, Frame& frame) {
    Unpacker in(frame.payload);
    switch (frame.op) {
      case Op::hello:
        rank.hello = true;
        return;
      case Op::finished:
        rank.finished = true;
        rank.result = std::move(frame.payload);
        return;
      case Op::lent:
        lent_ = true;
        return;
      case Op::heard:
        if (rank.fell == 0) rank.heard = std::max(rank.heard, past(in.number<std::int64_t>()));
        return;
      case Op::throwing:
        if (rank.fell == 0) falls(rank, in);
        rank.words.type = in.text();
        return;
      case Op::raised:
        if (rank.raised) return;
        rank.raised = true;
        falls(rank, in);
        rank.words.cut = in.flag();
        rank.words.type = in.text();
        rank.words.text = in.text();
        rank.words.trace = in.text();
        for (auto left = in.number<std::uint64_t>(); left > 0 && in.whole(); --left) {
          std::string type = in.text();
          rank.words.causes.push_back({std::move(type), in.text()});
        }
        return;
      default:
        store_.request(rank.local, frame);
    }
  }

  // A time that a rank reports is used only as far as it can be true.
  static std::int64_t past(std::int64_t time) { return std::clamp<std::int64_t>(time, 0, sys::now_monotonic()); }

  void falls(Rank& rank, Unpacker& in) {
    const std::int64_t when = past(in.number<std::int64_t>()), heard = past(in.number<std::int64_t>());
    if (rank.fell != 0) return;
    rank.fell = std::max<std::int64_t>(when, 1);
    rank.heard = std::min(std::max(rank.heard, heard), rank.fell);
    for (Rank& other : ranks_)
      if (&other != &rank) put_death_before(other, rank.fell);
  }

  // The message of a throw has come after a death. If the dead rank may have died before that throw, it did: its death
  // was ready before the message was. The time of a death is that of the look that found it, which may be too late.
  void put_death_before(Rank& dead, std::int64_t fell) {
    if (dead.time < fell || dead.alive >= fell) return;
    for (Failure& one : failures_found_)
      if (one.rank == plan_.rank(dead.local) && one.time == dead.time) one.time = fell - 1;
    dead.time = fell - 1;
  }

  void hear_zygote() {
    zygote_.link.flush();
    const bool more = zygote_.link.fill();
    while (auto frame = zygote_.link.next()) {
      Unpacker in(frame->payload);
      if (frame->op == Op::failed) cannot_start(kExitFailed, Error{Status::system, 0, {}, in.text()});
      if (frame->op != Op::forked) continue;
      for (Rank& rank : ranks_) {
        rank.pid = in.number<pid_t>();
        rank.hello = true;  // it was made after the entrance
      }
      zygote_.finished = in.whole();
    }
    if (!more || zygote_.link.broken()) zygote_.link.close();
  }

  // Its children become children of the supervisor before the kernel shows the end of their parent.
  void zygote_ended(const sys::ChildExit& child) {
    if (zygote_.link.open()) hear_zygote();
    zygote_.reaped = true;
    if (failures_) hear_failures();  // why it could not even be executed
    if (!zygote_.finished) {
      Failure end = failure_of(child);
      end.rank = 0;
      std::string how = end.signal != 0 ? "was killed by " + signal_name(end.signal)
                                        : "exited with code " + std::to_string(end.exit_code);
      return cannot_start(kExitFailed,
                          Error{Status::system, 0, {}, "the fork server " + how + " before it had made the ranks"});
    }
    for (Rank& rank : ranks_) {
      if (const auto early = early_.find(rank.pid); early != early_.end()) {
        rank.reaped = true;
        rank.how = early->second;
        rank.time = rank.alive = sys::now_monotonic();
        deaths_.push_back(rank.local);
      }
      if (rank.reaped) continue;  // it ended before its adoption
      siginfo_t state{};
      if (::waitid(P_PID, static_cast<id_t>(rank.pid), &state, WEXITED | WNOHANG | WNOWAIT) != 0)
        return cannot_start(kExitFailed,
                            Error{Status::protocol, 0, {}, "the fork server named processes that are not its own"});
      adopt(rank, rank.pid);
    }
    early_.clear();
    zygote_.link.close();  // the ranks wait for this
    all_started();
  }

  // ------------------------------------------------------------------------------------------------ how ranks end

  void reaped(const sys::ChildExit& child) {
    if (child.pid == zygote_.pid && !zygote_.reaped) return zygote_ended(child);
    for (Rank& rank : ranks_) {
      if (rank.pid != child.pid || rank.reaped) continue;
      rank.reaped = true;
      rank.how = child;
      if (rank.pidfd) return;
      rank.time = rank.alive = sys::now_monotonic();
      deaths_.push_back(rank.local);
      return;
    }
    // A rank of the fork server that died before its pid was known here.
    if (zygote_.pid > 0 && !zygote_.reaped) early_[child.pid] = child;
  }

  // A death gets the time at which it is seen here, and the time of the look before, at which the rank was alive.
  void note_order() {
    const std::int64_t now = sys::now_monotonic();
    epoll_event events[64];
    for (;;) {
      const int count = order_ ? ::epoll_wait(order_.get(), events, std::size(events), 0) : 0;
      for (int i = 0; i < count; ++i) {
        Rank& rank = ranks_[static_cast<std::uint32_t>(events[i].data.u64)];
        if (events[i].data.u64 >> 32 != Event::death) {
          hear_rank(rank);
          continue;
        }
        rank.time = sys::now_monotonic();
        rank.alive = order_known_;
        deaths_.push_back(rank.local);
      }
      if (count < static_cast<int>(std::size(events))) break;
    }
    order_known_ = now;
  }

  void take_deaths() {
    if (failures_) hear_failures();  // written before the death that it explains
    note_order();
    // Orders that the parent sent before a death apply to it.
    if (!deaths_.empty() && !parent_gone_ && parent_.socket >= 0) obey(parent_.socket, parent_gone_);
    while (!deaths_.empty()) {
      Rank& rank = ranks_[static_cast<std::size_t>(deaths_.front())];
      if (!rank.reaped) return;  // the next wait(2) takes it
      deaths_.erase(deaths_.begin());
      settle(rank);
    }
  }

  Failure failure_of(const sys::ChildExit& child) const {
    Failure failure;
    failure.pid = child.pid;
    failure.core = child.how.core;
    failure.user_ns = child.user_ns;
    failure.system_ns = child.system_ns;
    failure.max_rss = child.max_rss;
    failure.kind = child.how.killed ? Failure::signalled : Failure::exited;
    failure.signal = child.how.killed ? child.how.code : 0;
    failure.exit_code = child.how.killed ? -child.how.code : child.how.code;
    return failure;
  }

  void settle(Rank& rank) {
    if (rank.ended) return;
    rank.ended = true;
    ++ended_;
    rank.link.hang_up();
    hear_rank(rank);  // its last messages
    rank.link.close();
    rank.pidfd.reset();
    Failure failure = failure_of(rank.how);
    failure.rank = plan_.rank(rank.local);
    const bool threw = rank.raised || (rank.fell != 0 && !rank.finished);
    failure.time = threw ? rank.fell : rank.time;
    failure.heard = std::min(rank.heard, failure.time);
    failure.ended_by_us = threw ? rank.fell >= ending_since_ : rank.told_to_end;
    const bool function = plan_.channels && plan_.method != Method::command;
    if (threw) {
      failure.kind = Failure::raised;
      failure.cut = rank.words.cut;
      failure.type = rank.words.type, failure.text = rank.words.text, failure.trace = rank.words.trace;
      failure.causes = std::move(rank.words.causes);
      if (!rank.raised) failure.text = "(it was ended before it could tell more)";
    } else if (function && failure.exit_code == 0 && !rank.finished) {
      failure.kind = Failure::unfinished;
      if (!rank.hello) failure.text = "it never reached shmb_rank_enter";
    } else if (failure.exit_code == 0) {
      failure.rank = -1;  // ended well
    }
    relay_.say(reporter_.progress(static_cast<int>(ended_), plan_.nprocs));
    const bool well = failure.rank < 0;
    if (!well) add(std::move(failure));
    end_if_due();
    store_.gone(rank.local, well ? "has ended" : "has died");
    say_causes();
    if (ended_ == ranks_.size() && !cannot_start_) note(Note::ranks_ended, first_status(), {});
  }

  void add(Failure failure) {
    // A rank that never started has its failure already.
    for (const Failure& one : failures_found_)
      if (one.rank == failure.rank) return;
    failure.message = message_of(failure);
    if (!failure.ended_by_us && !failed_at_) {
      failed_at_ = sys::now_monotonic();
      others_have_ = voluntary_;
    }
    failures_found_.push_back(std::move(failure));
    put_in_order(failures_found_);
  }

  // Whether the cause may still come. Either a rank still unwinds an exception that it threw earlier. Or all known
  // failures may only echo an end that has not been seen yet.
  bool cause_may_come() const {
    const Failure& first = failures_found_.front();
    const auto threw_before = [&](const Rank& rank) { return !rank.ended && rank.fell != 0 && rank.fell < first.time; };
    return may_echo(first) || std::ranges::any_of(ranks_, threw_before);
  }

  // The time at which the other ranks are ended because of a failure.
  std::optional<std::int64_t> end_due() const {
    if (!failed_at_ || tree_.ending() || ended_ == ranks_.size()) return std::nullopt;
    const std::int64_t patience = cause_may_come() ? std::max(others_have_, kEcho) : others_have_;
    return patience > INT64_MAX - *failed_at_ ? INT64_MAX : *failed_at_ + patience;
  }

  void end_if_due() {
    if (const auto due = end_due(); due && sys::now_monotonic() >= *due) end_tree(SIGTERM, plan_.grace);
  }

  void say_causes() {
    if (plan_.nprocs == 1 || failures_found_.empty()) return;
    if (cause_may_come() && !tree_.ending() && ended_ < ranks_.size()) return;
    for (const Failure& one : failures_found_)
      if (!one.ended_by_us && said_.insert(one.rank).second) relay_.say(reporter_.line(one.message));
  }

  int first_status() const { return failures_found_.empty() ? 0 : status_of(failures_found_.front()); }

  Verdict verdict() {
    Verdict verdict;
    verdict.started = !cannot_start_;
    verdict.why = why_;
    if (cannot_start_) return verdict;
    if (!lost_.message.empty()) verdict.failures.push_back(lost_);
    verdict.failures.insert(verdict.failures.end(), failures_found_.begin(), failures_found_.end());
    for (Rank& rank : ranks_) verdict.results.push_back(std::move(rank.result));
    verdict.lent = lent_;
    return verdict;
  }

  void note(Note::Kind kind, int value, const std::string& sentence) {
    Note message{kind, value, {}};
    sentence.copy(message.sentence.data(), message.sentence.size() - 1);
    (void)tell(guard_socket_, message);
  }

  const Plan& plan_;
  Reporter& reporter_;
  Signals& signals_;
  int guard_socket_;
  pid_t guard_;
  Parent parent_;
  JobCgroup& cgroup_;
  Tree tree_;
  std::vector<Rank> ranks_;
  Rank zygote_;
  std::map<pid_t, sys::ChildExit> early_;
  Store store_;
  Relay relay_;
  Fd order_, failures_, guard_pidfd_;
  struct Watched {
    Rank* rank;
    enum What { link, out, err } what;
  };
  std::vector<pollfd> polled_;
  std::vector<Watched> watched_;         // the polled descriptors of ranks, in the same order
  std::vector<std::int32_t> deaths_;     // local ranks, in the order of their deaths
  std::vector<Failure> failures_found_;  // in order
  std::set<std::int32_t> said_;          // ranks whose failure was printed
  Failure lost_;
  Error why_;
  std::size_t ended_ = 0;
  int exit_status_ = 0;
  bool looked_ = false, guard_gone_ = false, parent_gone_ = false, cannot_start_ = false, started_ = false,
       lent_ = false;
  std::int64_t voluntary_ = plan_.voluntary;
  std::int64_t others_have_ = 0, ending_since_ = INT64_MAX;
  std::int64_t order_known_ = 0;  // the last time at which all deaths until then were known
  std::optional<std::int64_t> failed_at_, start_deadline_;
};

}  // namespace

void oversee(const Plan& plan, Reporter& reporter, Signals& signals, int guard_socket, pid_t guard, Parent parent,
             JobCgroup& cgroup) {
  Overseer(plan, reporter, signals, guard_socket, guard, parent, cgroup).run();
}

}  // namespace shmb::spawn
