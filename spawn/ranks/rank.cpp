// SPDX-License-Identifier: Apache-2.0
// See rank.hpp. Of the threads that wait for replies, one reads the channel and passes the others theirs.
#include "spawn/ranks/rank.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/c_api/c_api.hpp"
#include "client/session/condition.hpp"
#include "client/session/forked.hpp"
#include "spawn/face/shmbroker_cause.h"
#include "spawn/ranks/bytes.hpp"

namespace shmb::spawn {
namespace {

using client::Deadline;

// Descriptors of a rank's channel and outputs, -1: none.
struct Ends {
  int control = -1, out = -1, err = -1;
  void close_all() {
    for (int* fd : {&control, &out, &err}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }
};

struct State {
  std::mutex mutex;  // guards everything but the socket's writing side
  std::mutex turns;  // guards `writing`: one thread at a time writes a frame
  bool writing = false;
  client::Condition changed, written;
  Fd socket, gate;               // gate: in a rank of the fork server, until it may begin
  std::atomic<pid_t> owner = 0;  // read before the lock, which a forked child may find locked for ever
  bool looked = false, entered = false, function = false;
  RankFacts facts;
  // Variables of the fork server's ranks.
  std::array<char, 32> rank_variable{"RANK="}, role_rank_variable{"ROLE_RANK="}, local_rank_variable{"LOCAL_RANK="};
  std::string in;
  std::pair<std::vector<Ends>*, std::vector<pid_t>*> made;  // what the fork server had while it made its ranks
  bool reading = false, closed = false;
  std::uint64_t last_tag = 0;
  std::map<std::uint64_t, std::optional<Frame>> answers;  // by tag, of open requests
  // CLOCK_MONOTONIC times of three events: an uncaught throw, the last report of another rank's end, and the last such
  // report that was passed to the supervisor. 0: never.
  std::atomic<std::int64_t> thrown_at = 0, heard_at = 0, passed_on_at = 0;
};

State& state() {
  static State* const it = new State;
  return *it;
}

// Tags begin with the process number. So a command that follows another in one rank does not take the other's replies.
void own(State& it) {
  it.owner = ::getpid();
  it.last_tag = static_cast<std::uint64_t>(::getpid()) << 32;
}

bool is_copy(const State& it) {
  const pid_t owner = it.owner;
  return owner != 0 && owner != ::getpid();
}

std::unexpected<Error> no_rank() {
  return error(Status::not_found, "this process is no rank: it was not started by spawn or `shmbroker run --nprocs`");
}

std::unexpected<Error> supervisor_gone() {
  return error(Status::peer_gone, "the supervisor of the ranks is gone, and they are about to be ended");
}

class EndOfWriting {
 public:
  explicit EndOfWriting(State& it) : it_(it) {}
  EndOfWriting(const EndOfWriting&) = delete;
  EndOfWriting& operator=(const EndOfWriting&) = delete;
  ~EndOfWriting() {
    const std::lock_guard lock(it_.turns);
    it_.writing = false;
    it_.written.notify_one();
  }

 private:
  State& it_;
};

Result<void> begin_writing(State& it, Deadline deadline) {
  std::unique_lock lock(it.turns);
  for (; it.writing; it.written.wait(lock, deadline))
    if (deadline.passed())
      return error(Status::deadline,
                   "another thread's word to the supervisor of the ranks was not taken before the "
                   "deadline");
  it.writing = true;
  return {};
}

Result<void> write_frame(State& it, Op op, std::uint64_t tag, std::string_view payload, Deadline deadline) {
  const FrameHead head{static_cast<std::uint32_t>(payload.size()), static_cast<std::uint16_t>(op), 0, tag};
  std::array<char, 256> small;
  std::string large;
  std::string_view left;
  if (sizeof head + payload.size() <= small.size()) {
    std::memcpy(small.data(), &head, sizeof head);
    std::ranges::copy(payload, small.begin() + sizeof head);
    left = {small.data(), sizeof head + payload.size()};
  } else {
    left = large = encode_frame(op, tag, payload);
  }
  SHMB_TRY_VOID(begin_writing(it, deadline));
  const EndOfWriting ends(it);
  bool begun = false;
  std::optional<interrupt::Shield> whole;  // no signal leaves half a frame behind
  while (!left.empty()) {
    const ssize_t size = ::send(it.socket.get(), left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size > 0) {
      if (!std::exchange(begun, true)) whole.emplace();
      left.remove_prefix(static_cast<std::size_t>(size));
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return supervisor_gone();
    auto ready = sys::poll_for(it.socket.get(), POLLOUT, deadline.left());
    if (!ready || *ready == 0) {
      // Half a message cannot be taken back, so the channel is unusable.
      if (begun) (void)::shutdown(it.socket.get(), SHUT_RDWR);
      return error(Status::deadline, "the supervisor of the ranks did not take the request before the deadline");
    }
  }
  return {};
}

// Call with the lock held, in the one thread that reads. False: end of file.
bool read_some(State& it, int fd) {
  char chunk[65536];
  const ssize_t size = ::recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
  if (size < 0) return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
  it.in.append(chunk, static_cast<std::size_t>(size));
  return size > 0;
}

std::optional<Frame> take_frame(State& it) {
  FrameHead head;
  if (it.in.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, it.in.data(), sizeof head);
  if (it.in.size() - sizeof head < head.size) return std::nullopt;
  Frame frame{static_cast<Op>(head.op), head.status, head.tag, it.in.substr(sizeof head, head.size)};
  it.in.erase(0, sizeof head + head.size);
  return frame;
}

// Call before any other thread knows of the channel.
Result<Frame> await_frame(State& it, Op op) {
  for (;;) {
    while (auto frame = take_frame(it))
      if (frame->op == op) return std::move(*frame);
    auto ready = sys::poll_readable(it.socket.get(), -1);
    if (!ready || !read_some(it, it.socket.get())) return supervisor_gone();
  }
}

Result<void> take_orders(State& it, std::string payload) {
  Unpacker in(payload);
  it.facts.rank = in.number<std::int32_t>();
  it.facts.local_rank = in.number<std::int32_t>();
  it.facts.world_size = in.number<std::int32_t>();
  it.facts.local_world_size = in.number<std::int32_t>();
  it.facts.shard = in.number<std::int32_t>();
  it.facts.function = in.text();
  it.facts.arguments = in.text();
  it.facts.parent_epoch = in.number<std::uint64_t>();
  it.facts.parent_session = in.number<std::uint64_t>();
  if (!in.done()) return error(Status::protocol, "the supervisor is of another version of the library");
  return {};
}

Result<void> say_hello(State& it) {
  it.entered = it.function = true;
  return write_frame(it, Op::hello, 0, {}, Deadline::after(client::kForever));
}

std::int32_t number_variable(const char* name, std::int32_t otherwise) {
  const char* text = ::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::int32_t>(std::strtol(text, nullptr, 10));
}

// A command: it may ask its peers, but has no function to finish.
void enter_command(State& it, int fd) {
  it.socket = Fd::adopt(fd);
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  own(it);
  it.entered = true;
  it.facts.rank = number_variable("RANK", 0);
  it.facts.local_rank = number_variable("LOCAL_RANK", 0);
  it.facts.world_size = number_variable("WORLD_SIZE", 1);
  it.facts.local_world_size = number_variable("LOCAL_WORLD_SIZE", 1);
  it.facts.shard = number_variable("GROUP_RANK", 0);
}

// Closes each by itself: a range may hold descriptors that a fork handler has opened. Those of earlier ranks are closed
// already.
void leave_to_others(std::vector<Ends>& all, std::size_t own) {
  for (std::size_t i = own + 1; i < all.size(); ++i) all[i].close_all();
}

// The channels of the ranks, as the supervisor listed them.
Result<std::vector<Ends>> channels_of_ranks() {
  const char* text = ::secure_getenv(kZygoteVariable);
  std::vector<Ends> all;
  for (std::string_view left = text == nullptr ? "" : text; !left.empty();) {
    const std::size_t end = std::min(left.find(','), left.size());
    const std::string one(left.substr(0, end));
    const std::size_t slash = std::min(one.find('/'), one.size());
    auto place = find_control(one.substr(0, slash).c_str());
    Ends ends;
    if (!place || std::sscanf(one.c_str() + slash, "/%d/%d", &ends.out, &ends.err) != 2)
      return error(Status::protocol, "the fork server has lost the channel of a rank");
    ends.control = place->fd;
    for (const int fd : {ends.control, ends.out, ends.err})
      if (fd >= 0) (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
    all.push_back(ends);
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  ::unsetenv(kZygoteVariable);
  return all;
}

// The fork server: makes all ranks at once. It returns in the ranks, with their local number and their end of the
// channel. The fork server itself ends, and the kernel gives the ranks to the supervisor. Each page that a rank touches
// costs a copy or a fault, a microsecond each. So everything that can be done before the forks is done there.
Result<std::int32_t> make_ranks(State& it, void (*preload)()) {
  SHMB_TRY(named, channels_of_ranks());
  if (preload != nullptr) preload();
  std::fflush(nullptr);  // else each rank would print it again
  // Never destroyed: the destructor would run in each rank.
  std::vector<Ends>& all = *new std::vector<Ends>(std::move(named));
  std::vector<pid_t>& pids = *new std::vector<pid_t>(all.size());
  it.made = {&all, &pids};
  (void)::putenv(it.rank_variable.data());
  (void)::putenv(it.role_rank_variable.data());
  (void)::putenv(it.local_rank_variable.data());
  for (std::size_t i = 0; i < all.size(); ++i) {
    Ends& one = all[i];
    pids[i] = ::fork();
    if (pids[i] == 0) {
      if (one.out >= 0) (void)::dup2(one.out, 1);
      if (one.err >= 0) (void)::dup2(one.err, 2);
      for (const int fd : {one.out, one.err})
        if (fd >= 0) ::close(fd);
      leave_to_others(all, i);
      it.gate = std::exchange(it.socket, Fd::adopt(one.control));
      return static_cast<std::int32_t>(i);
    }
    if (pids[i] < 0) {
      const std::string why = "the fork server cannot start a process: " + errno_text(errno);
      (void)write_frame(it, Op::failed, 0, Packer().text(why).take(), Deadline::after(0));
      ::_exit(1);
    }
    one.close_all();
  }
  Packer told;
  for (const pid_t pid : pids) told.number(pid);
  (void)write_frame(it, Op::forked, 0, told.take(), Deadline::after(0));
  ::_exit(0);
}

void put_number(std::array<char, 32>& variable, std::int32_t number) {
  char* const at = std::find(variable.begin(), variable.end(), '=') + 1;
  *std::to_chars(at, variable.end() - 1, number).ptr = '\0';
}

// A rank of the fork server has no parent-death signal until it is a child of the supervisor. It waits for that: the
// supervisor then closes the channel of the fork server for all ranks at once. The supervisor's death closes it too.
void await_adoption(State& it, pid_t supervisor) {
  char byte = 0;
  for (ssize_t got = 1; got > 0 || (got < 0 && errno == EINTR);) got = ::recv(it.gate.get(), &byte, 1, 0);
  it.gate.reset();
  (void)sys::set_parent_death_signal(SIGKILL);
  if (::getppid() != supervisor) ::_exit(1);
}

Result<void> enter(State& it, void (*preload)()) {
  it.looked = true;
  auto place = find_control(::secure_getenv(kControlVariable));
  if (!place) return no_rank();
  if (place->role == Role::command) {
    enter_command(it, place->fd);
    return {};
  }
  // Programs that this one starts are no ranks.
  ::unsetenv(kControlVariable);
  (void)::fcntl(place->fd, F_SETFD, FD_CLOEXEC);
  it.socket = Fd::adopt(place->fd);
  SHMB_TRY(begin, await_frame(it, Op::begin));
  SHMB_TRY_VOID(take_orders(it, std::move(begin.payload)));
  if (place->role == Role::rank) {
    own(it);
    return say_hello(it);
  }
  const pid_t supervisor = ::getppid();
  SHMB_TRY(local, make_ranks(it, preload));
  own(it);
  it.facts.rank += local;
  it.facts.local_rank = local;
  it.entered = it.function = true;  // the supervisor knows, because the fork server has reported it
  put_number(it.rank_variable, it.facts.rank);
  put_number(it.role_rank_variable, it.facts.rank);
  put_number(it.local_rank_variable, local);
  await_adoption(it, supervisor);
  return {};
}

Result<State*> entered_state() {
  State& it = state();
  if (is_copy(it))
    return error(Status::forked, "a forked child of a rank is no rank: only the rank itself may ask the others");
  std::lock_guard lock(it.mutex);
  if (!it.looked) {
    // Only commands come here without enter_rank. A rank with a function calls that first.
    auto place = find_control(::secure_getenv(kControlVariable));
    if (place && place->role == Role::command) (void)enter(it, nullptr);
  }
  if (!it.entered) return no_rank();
  return &it;
}

Result<void> say(Op op, std::string_view payload, Deadline deadline = Deadline::after(client::kForever)) {
  SHMB_TRY(it, entered_state());
  if (!it->function) return error(Status::unsupported, "this rank is a command: it has no function to finish");
  return write_frame(*it, op, 0, payload, deadline);
}

}  // namespace

namespace {

// The supervisor itself has just reported an end to this thread, and knows whose.
thread_local bool told_by_supervisor = false;

// Never waits. A report that does not fit now goes with the failure, if there is one.
void hear_of_an_end() noexcept {
  if (std::exchange(told_by_supervisor, false)) return;
  try {
    auto it = entered_state();
    if (!it) return;
    State& rank = **it;
    const std::int64_t now = sys::now_monotonic();
    constexpr std::int64_t kOften = 50'000'000;
    rank.heard_at = now;
    if (now - rank.passed_on_at < kOften) return;
    rank.passed_on_at = now;
    (void)write_frame(rank, Op::heard, 0, Packer().number(now).take(), Deadline::now());
  } catch (...) {  // no memory: the application gets the report all the same
  }
}

[[maybe_unused]] const bool hears = [] {
  client::c_api::on_end_told = hear_of_an_end;
  return true;
}();

}  // namespace

Result<const RankFacts*> enter_rank(void (*preload)()) {
  State& it = state();
  if (is_copy(it)) return no_rank();
  std::lock_guard lock(it.mutex);
  if (!it.looked) SHMB_TRY_VOID(enter(it, preload));
  if (!it.entered) return no_rank();
  return &it.facts;
}

bool awaited_as_rank() {
  // The variable is removed at the entrance. It is useless where the descriptor was not inherited.
  auto place = find_control(::getenv(kControlVariable));
  return place && place->role != Role::command;
}

void become_forked_rank(Fd control, std::string begin_payload) {
  State& it = *new (&state()) State;  // the parent's may be locked, or belong to a rank that spawns
  it.looked = true;
  it.socket = std::move(control);
  own(it);
  if (take_orders(it, std::move(begin_payload))) (void)say_hello(it);
}

Result<void> announce_lent(Deadline deadline) { return say(Op::lent, {}, deadline); }

Result<void> finish_rank(std::string_view result) {
  if (result.size() > kMostText)
    return error(Status::limit, "a result has at most 16 MiB, this one has " + std::to_string(result.size()) +
                                    " bytes: return large things as regions");
  return say(Op::finished, result);
}

Result<void> throw_in_rank(std::string_view type) {
  SHMB_TRY(it, entered_state());
  std::int64_t never = 0;
  it->thrown_at.compare_exchange_strong(never, sys::now_monotonic());
  // With a deadline: the raise that follows reports it again.
  return say(Op::throwing,
             Packer().number(it->thrown_at.load()).number(it->heard_at.load()).text(type.substr(0, 4096)).take(),
             Deadline::now());
}

Result<void> raise_in_rank(std::string_view type, std::string_view text, std::string_view trace,
                           const std::vector<Cause>& causes) {
  SHMB_TRY(it, entered_state());
  std::int64_t never = 0;
  it->thrown_at.compare_exchange_strong(never, sys::now_monotonic());
  bool cut = false;
  const auto bounded = [&](std::string_view part, std::size_t most) {
    cut |= part.size() > most;
    return part.substr(part.size() - std::min(part.size(), most));  // the end of a text says most
  };
  type = type.substr(0, 4096);
  text = bounded(text, kMostText / 2);
  trace = bounded(trace, kMostText / 2 - 8192);
  std::vector<std::pair<std::string_view, std::string_view>> chain;
  std::size_t room = kMostCauses;
  for (const Cause& one : causes) {
    if (chain.size() == SHMB_MOST_CAUSES || room == 0) {
      cut = true;
      break;
    }
    chain.emplace_back(std::string_view(one.type).substr(0, 4096), bounded(one.text, room));
    room -= chain.back().second.size();
  }
  Packer out;
  out.number(it->thrown_at.load()).number(it->heard_at.load());
  out.number<std::uint8_t>(cut).text(type).text(text).text(trace).number<std::uint64_t>(chain.size());
  for (const auto& [one_type, one_text] : chain) out.text(one_type).text(one_text);
  return say(Op::raised, out.take());
}

Result<std::string> ask(Op op, std::string_view payload, Deadline deadline) {
  SHMB_TRY(entered, entered_state());
  State& it = *entered;
  std::unique_lock lock(it.mutex);
  const std::uint64_t tag = ++it.last_tag;
  it.answers[tag];
  lock.unlock();
  auto sent = write_frame(it, op, tag, payload, deadline);
  lock.lock();
  bool cancelled = false;
  std::optional<interrupt::Shield> settling;
  while (sent) {
    auto& answer = it.answers[tag];
    if (answer) {
      Frame frame = std::move(*answer);
      it.answers.erase(tag);
      const auto status = static_cast<Status>(frame.status);
      if (status == Status::ok) return std::move(frame.payload);
      told_by_supervisor = status == Status::peer_gone;
      return error(status, std::move(frame.payload));
    }
    if (it.closed) break;
    if (deadline.passed()) {
      if (cancelled) {
        it.answers.erase(tag);
        return error(Status::deadline, "the supervisor of the ranks did not answer before the deadline");
      }
      // The request may have been served meanwhile. The reply to the cancellation says so.
      cancelled = true;
      settling.emplace();
      deadline = Deadline::after(client::kDefaultTimeout);
      lock.unlock();
      sent = write_frame(it, Op::cancel, tag, {}, deadline);
      lock.lock();
      continue;
    }
    if (it.reading) {
      it.changed.wait(lock, deadline);
      continue;
    }
    it.reading = true;
    lock.unlock();
    auto ready = sys::poll_readable(it.socket.get(), deadline.left());
    lock.lock();
    it.reading = false;
    if (!ready && ready.error().value == EBADF) it.closed = true;  // the program closed it
    if (ready && *ready && !read_some(it, it.socket.get())) it.closed = true;
    while (auto frame = take_frame(it)) {
      const auto waits = it.answers.find(frame->tag);
      if (frame->op == Op::reply && waits != it.answers.end()) waits->second = std::move(*frame);
    }
    it.changed.notify_all();
  }
  it.answers.erase(tag);
  if (!sent) return std::unexpected(sent.error());
  return supervisor_gone();
}

}  // namespace shmb::spawn
