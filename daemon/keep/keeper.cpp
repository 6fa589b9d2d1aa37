// SPDX-License-Identifier: Apache-2.0
// See keeper.hpp. All signals are blocked except in Keeper::nap, so their handler interrupts nothing but a wait.
#include "daemon/keep/keeper.hpp"

#include <linux/prctl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/sys_process.hpp"

namespace shmb::daemon::keep {
namespace {

constexpr std::int64_t kMilli = 1'000'000, kSecond = 1000 * kMilli;
// The time that threads of a killed broker get to leave the processor, where its end is known by its word alone.
constexpr std::int64_t kLastSteps = 100 * kMilli;
// A broker that has lived for kLivedWell is replaced at once. After any other one comes a pause, which doubles each
// time up to kLongestPause. SIGKILL comes from outside and is no fault of the broker, so the pause after it stays
// shorter.
constexpr std::int64_t kLivedWell = kSecond, kFirstPause = kMilli, kLongestPause = kSecond, kKilledPause = 50 * kMilli;
constexpr std::int64_t kCloneAgain = 100 * kMilli;
constexpr int kLooks = 4;                                // in the time after which a broker hangs
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGHUP};  // a broker reads them from a descriptor
constexpr int kIgnored[] = {SIGUSR1, SIGUSR2};           // by all three: nobody takes them
constexpr sys::ProcessName kName{"shmb-keeper"};

constexpr std::uint64_t bit(int signal) { return std::uint64_t{1} << signal; }

sigjmp_buf back;
std::uint64_t caught = 0;

void note(int signal) {
  caught |= bit(signal);
  ::siglongjmp(back, 1);
}

// The keepers tell each other these facts. No broker maps them.
struct Between {
  std::atomic<pid_t> broker{0};  // 0: none
  std::atomic<std::uint32_t> brokers{0};
  std::atomic<std::uint32_t> stop{0};  // 1: the end was asked for
  std::atomic<std::uint32_t> ending{0};
};

template <class T>
T* shared() {
  void* const at = sys::memory_shared_with_children(sizeof(T));
  return at == nullptr ? nullptr : new (at) T;
}

bool no_such_process(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

class Keeper {
 public:
  Keeper(const Keep& keep, Board& board, Between& between) : keep_(keep), board_(board), between_(between) {}
  Result<Life> run();

 private:
  enum class Role { keeper, broker };
  void prepare();
  void reap();
  bool broker_gone(std::int64_t now);
  void broker_lost(std::int64_t now);
  void forward();
  void look_for_hang(std::int64_t now);
  void start_second();
  Role start_broker(std::int64_t now);
  void wait_to_take_over();
  void announce() const;
  Life become_broker();
  void nap(std::int64_t longest);
  void end_second();
  [[noreturn]] void end(int status);
  pid_t broker() const { return between_.broker.load(std::memory_order_acquire); }
  bool marked() const { return (board_.alive.word.load(std::memory_order_acquire) & sys::kOwnerDied) != 0; }

  const Keep& keep_;
  Board& board_;
  Between& between_;
  sigset_t usual_{}, closed_{};
  sys::ProcessName broker_name_;
  pid_t main_ = 0;
  std::atomic<pid_t> second_{0};
  bool child_ = false;    // the broker is a child of this keeper
  bool reaped_ = false;   // and its end is known
  int last_status_ = -1;  // of the last broker; -1: unknown
  int no_clone_ = 0;      // errno of the first broker's clone, if there was none
  std::int64_t born_ = 0, marked_since_ = 0, pause_ = 0, next_ = 0, second_next_ = 0;
  std::int64_t next_look_ = 0;
  std::uint32_t last_beat_ = 0;
  int still_ = 0;  // looks that found the beat where it was
};

void Keeper::prepare() {
  ::sigfillset(&closed_);
  ::sigprocmask(SIG_SETMASK, &closed_, &usual_);
  struct sigaction action{};
  action.sa_handler = note;
  ::sigfillset(&action.sa_mask);
  ::sigaction(SIGCHLD, &action, nullptr);
  for (int signal : kForwarded) {
    ::sigaction(signal, &action, nullptr);
    ::sigdelset(&usual_, signal);
  }
  ::sigdelset(&usual_, SIGCHLD);
  for (int signal : kIgnored) ::signal(signal, SIG_IGN);
  broker_name_ = sys::process_name();
  sys::set_process_name(kName);
  main_ = ::getpid();
}

Result<Life> Keeper::run() {
  prepare();
  for (;;) {
    std::int64_t now = sys::now_monotonic();
    reap();
    forward();
    if (broker() != 0 && broker_gone(now)) broker_lost(now);
    if (second_ == 0 && now >= second_next_) start_second();
    if (broker() == 0 && now >= next_ && start_broker(now) == Role::broker) return become_broker();
    if (no_clone_ != 0) {
      end_second();
      return system_failure(Errno{no_clone_}, "clone for the broker, beside its keepers");
    }
    look_for_hang(now);
    const std::int64_t interval = keep_.hang / kLooks;
    now = sys::now_monotonic();
    if (broker() == 0) nap(std::clamp<std::int64_t>(next_ - now, 0, interval));
    else if (marked_since_ != 0) nap(2 * kMilli);
    else if (second_ == 0) nap(std::clamp<std::int64_t>(second_next_ - now, 0, interval));
    // A broker of the former main keeper that has not registered its word yet: only looks can notice its end.
    else if (!child_ && board_.alive.word == 0) nap(std::min(kLastSteps, interval));
    else nap(interval);
  }
}

// The signal handler leaves this wait by a jump, also if the signal came just before it.
void Keeper::nap(std::int64_t longest) {
  const std::uint32_t word = board_.alive.word.load(std::memory_order_acquire);
  if (broker() != 0 && marked_since_ == 0 && (word & sys::kOwnerDied) != 0) return;
  if (::sigsetjmp(back, 1) == 0) {
    ::sigprocmask(SIG_SETMASK, &usual_, nullptr);
    sys::wait_while(board_.alive.word, word, longest);
  }
  ::sigprocmask(SIG_SETMASK, &closed_, nullptr);
}

void Keeper::reap() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == second_) second_ = 0;
    if (pid != broker() || !child_) continue;
    reaped_ = true;
    last_status_ = status;
  }
}

bool Keeper::broker_gone(std::int64_t now) {
  if (reaped_) return true;
  if (!child_ && no_such_process(broker())) return true;
  if (!marked()) return false;
  if (marked_since_ == 0) {
    marked_since_ = now;
    // A word can be false. A child's pid is its own until it is reaped.
    if (child_) ::kill(broker(), SIGKILL);
  }
  return now - marked_since_ >= kLastSteps;
}

void Keeper::broker_lost(std::int64_t now) {
  if (board_.ended != 0) end(0);
  between_.broker.store(0, std::memory_order_release);
  if (reaped_ && WIFEXITED(last_status_)) {
    const int status = WEXITSTATUS(last_status_);
    if (status == 0 || board_.served == 0) end(status);
    if (status == kCannotGoOn) end(1);
  }
  // Otherwise a fault at each start would go on for ever without a report. SIGKILL comes from outside.
  if (reaped_ && WIFSIGNALED(last_status_) && WTERMSIG(last_status_) != SIGKILL && board_.served == 0)
    end(128 + WTERMSIG(last_status_));
  if (between_.stop != 0) {
    for (const std::string& socket : keep_.sockets) ::unlink(socket.c_str());
    end(0);
  }
  const bool killed = !reaped_ || (WIFSIGNALED(last_status_) && WTERMSIG(last_status_) == SIGKILL);
  pause_ = now - born_ >= kLivedWell
               ? 0
               : std::min(std::max(kFirstPause, 2 * pause_), killed ? kKilledPause : kLongestPause);
  next_ = now + pause_;
  if (!reaped_) last_status_ = -1;
}

void Keeper::forward() {
  const std::uint64_t now = caught;
  caught = 0;
  if ((now & (bit(SIGTERM) | bit(SIGINT))) != 0) between_.stop = 1;
  if (broker() == 0) {
    if (between_.stop == 0) return;
    for (const std::string& socket : keep_.sockets) ::unlink(socket.c_str());
    end(0);
  }
  for (int signal : kForwarded)
    if ((now & bit(signal)) != 0 && !reaped_ && !marked()) ::kill(broker(), signal);
}

// Looks are counted, not time: after this keeper was stopped, or the host was suspended, one look alone says nothing.
void Keeper::look_for_hang(std::int64_t now) {
  if (now < next_look_) return;
  next_look_ = now + keep_.hang / kLooks;
  const std::uint32_t beat = board_.beat.load(std::memory_order_relaxed);
  const bool still = broker() != 0 && beat % 2 == 1 && beat == last_beat_;
  last_beat_ = beat;
  still_ = still ? still_ + 1 : 0;
  if (still_ <= kLooks || marked() || reaped_) return;
  const char state = sys::process_state(broker());
  if (state == 'T' || state == 't') {
    still_ = 0;
  } else if (state == 'Z' && !child_) {  // it ended before it registered its word, and its parent has not reaped it
    reaped_ = true;
    last_status_ = -1;
  } else {
    board_.hung.store(1, std::memory_order_release);
    ::kill(broker(), SIGKILL);
  }
}

// Returns in the second keeper only when it has become the main one.
void Keeper::start_second() {
  auto child = sys::fork_sharing_descriptors(second_);
  if (!child) second_next_ = sys::now_monotonic() + kCloneAgain;
  if (!child || *child != 0) return;
  second_ = 0;
  wait_to_take_over();
  main_ = ::getpid();
  child_ = reaped_ = false;
  marked_since_ = pause_ = next_ = still_ = 0;
  born_ = sys::now_monotonic();
  announce();
}

void Keeper::wait_to_take_over() {
  std::atomic<std::uint32_t> never{0};
  (void)sys::set_parent_death_signal(SIGCHLD);
  while (::getppid() == main_) {
    for (int signal : kForwarded)
      if ((caught & bit(signal)) != 0) ::kill(main_, signal);
    caught = 0;
    if (::sigsetjmp(back, 1) == 0) {
      ::sigprocmask(SIG_SETMASK, &usual_, nullptr);
      sys::wait_while(never, 0, 3600 * kSecond);
    }
    ::sigprocmask(SIG_SETMASK, &closed_, nullptr);
  }
  (void)sys::set_parent_death_signal(0);
  if (between_.ending != 0 || board_.ended != 0) ::_exit(0);
}

Keeper::Role Keeper::start_broker(std::int64_t now) {
  board_.alive.word = 0;
  board_.beat = 1;
  board_.ended = 0;
  ++between_.brokers;
  const bool reaped = std::exchange(reaped_, false);
  marked_since_ = still_ = 0;
  child_ = true;
  born_ = now;
  auto child = sys::fork_sharing_descriptors(between_.broker);
  if (child && *child == 0) return Role::broker;
  if (!child) {
    if (--between_.brokers == 0) no_clone_ = child.error().value;  // nobody is served yet: whoever starts it hears
    reaped_ = reaped;
    next_ = now + kCloneAgain;
  }
  return Role::keeper;
}

// In the broker: what a keeper has changed in this process goes back.
Life Keeper::become_broker() {
  for (int signal : kForwarded) ::signal(signal, SIG_DFL);
  ::signal(SIGCHLD, SIG_DFL);
  // These signals stay blocked until the broker reads them from a descriptor.
  for (int signal : kForwarded) ::sigaddset(&usual_, signal);
  ::sigprocmask(SIG_SETMASK, &usual_, nullptr);
  sys::set_process_name(broker_name_);
  Life life{&board_, between_.brokers - 1, {}};
  if (life.before > 0) {
    life.at_fault = last_status_ != -1 && !(WIFSIGNALED(last_status_) && WTERMSIG(last_status_) == SIGKILL);
    if (last_status_ == -1) life.last = "ended";
    else if (WIFEXITED(last_status_)) life.last = "ended with status " + std::to_string(WEXITSTATUS(last_status_));
    else
      life.last = "was killed by signal " + std::to_string(WTERMSIG(last_status_)) + " (" +
                  ::strsignal(WTERMSIG(last_status_)) + ")";
  }
  ::munmap(&between_, sizeof between_);
  return life;
}

// sd_notify(3) by a socket of its own: the one in the table is at the mercy of each broker.
void Keeper::announce() const {
  if (keep_.notify.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (keep_.notify.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, keep_.notify.data(), keep_.notify.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  char text[32];
  const int length = std::snprintf(text, sizeof text, "MAINPID=%d\n", static_cast<int>(::getpid()));
  (void)::sendto(socket, text, static_cast<std::size_t>(length), MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + keep_.notify.size()));
  ::close(socket);
}

void Keeper::end_second() {
  between_.ending.store(1, std::memory_order_release);
  if (const pid_t second = second_; second != 0) {
    ::kill(second, SIGKILL);
    while (::waitpid(second, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

// The second keeper first: it holds the same lock.
void Keeper::end(int status) {
  end_second();
  ::_exit(status);
}

}  // namespace

std::string no_keepers() {
#if defined(__SANITIZE_THREAD__)
  return "no keepers: this shmbrokerd was built with ThreadSanitizer";
#else
  pid_t* tid = nullptr;
  if (::prctl(PR_GET_TID_ADDRESS, &tid, 0UL, 0UL, 0UL) == 0 && tid != nullptr) return {};
  return "no keepers: the kernel, or a sandbox around the broker, has no PR_GET_TID_ADDRESS";
#endif
}

std::uint32_t Life::begins() const {
  constexpr std::int64_t kSoon = 10'000'000'000;
  const std::int64_t now = sys::now_monotonic();
  const bool soon = now - board->started.exchange(now, std::memory_order_acq_rel) < kSoon;
  const bool hung = board->hung.exchange(0, std::memory_order_acq_rel) != 0;
  if (hung || (at_fault && soon)) board->faults.fetch_add(1, std::memory_order_acq_rel);
  else board->faults.store(0, std::memory_order_release);
  return board->unserved.fetch_add(1, std::memory_order_acq_rel);
}

int Life::last_books() const {
  if (before == 0) return -1;
  if (!at_fault) board->begun.store(0, std::memory_order_release);
  if (gave_up()) return -1;
  board->begun.fetch_add(1, std::memory_order_acq_rel);
  return board->books.load(std::memory_order_acquire);
}

Result<Life> keep_broker(const Keep& keep) {
  if (std::string why = no_keepers(); !why.empty()) return error(Status::unsupported, why);
  Board* const board = shared<Board>();
  Between* const between = shared<Between>();
  if (board == nullptr || between == nullptr) return system_failure(Errno{errno}, "memory for the keepers");
  Keeper keeper(keep, *board, *between);
  SHMB_TRY(life, keeper.run());
  if (auto left = sys::leave_last_word(board->alive); !left)
    return system_failure(left.error(), "leaving a robust word");
  return std::move(life);
}

}  // namespace shmb::daemon::keep
