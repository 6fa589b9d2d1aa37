// SPDX-License-Identifier: Apache-2.0
// How the broker waits: one loop on one thread, over epoll or io_uring, behind one interface. A session's next packet
// is delivered only on request. So the packets behind a request in service wait in the peer's own socket buffer, not in
// the broker's memory. All that is ready is served in turns (turns.hpp), a slice at a time. Between two slices the
// engine asks the kernel for what has become ready meanwhile. A packet without descriptors causes no allocation here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/sys_socket.hpp"
#include "daemon/kit/turns.hpp"
#include "daemon/start/config.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

// The pause (ns) before the kernel is asked again after it had no memory.
inline constexpr std::int64_t kMemoryPause = 10'000'000;
// The time (ns) of service between two looks at what is ready. A descriptor that has become ready may wait so long for
// the next look.
inline constexpr std::int64_t kSlice = 100'000;

// Level-triggered readability of one descriptor: a listener, a pidfd, an eventfd, a signalfd.
class Waiter {
 public:
  virtual void on_readable() = 0;

 protected:
  ~Waiter() = default;

 private:
  friend class EpollEngine;
  friend class UringEngine;
  void* slot_ = nullptr;  // the engine's own record; null while not watched
};

// One session socket.
class Port {
 public:
  // The packet that was asked for. `bytes` is valid until the call returns. Size 0 is end of file or an empty packet,
  // which recvmsg(2) does not distinguish. `error` is the errno of a receive that failed for good.
  struct Arrival {
    wire::Bytes bytes;
    bool truncated = false;  // longer than any message may be
    // Control data other than descriptors came too, or the table is full and the kernel has dropped some descriptors.
    bool bad_control = false;
    // All descriptors that came, also where the port may bring none. The kernel closes descriptors that find no room on
    // the receiving thread, and the last close of a socket may wait for its peer. For the same reason they must not be
    // closed on this thread.
    std::vector<Fd> descriptors;
    int error = 0;
  };
  virtual void on_arrival(Arrival& arrival) = 0;
  virtual void on_writable() = 0;  // an edge: the peer has read something, or is gone

 protected:
  ~Port() = default;

 private:
  friend class EpollEngine;
  friend class UringEngine;
  void* slot_ = nullptr;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Gets the descriptors that a peer sent to a port that is gone. Without this function the engine closes them.
  std::function<void(std::vector<Fd>)> discard;
  Turns turns;
  // The waiter is called at once, or, with a process, in the turn of that process.
  virtual Sys<void> watch(int fd, Waiter& waiter, Turns::Process* process = nullptr) = 0;
  virtual void unwatch(Waiter& waiter) = 0;  // before its descriptor is closed; no call comes afterwards
  virtual Sys<void> add(int fd, Port& port, Turns::Process& process) = 0;  // its calls come in turns of the process
  virtual void remove(Port& port) = 0;   // before its socket is closed; no call comes afterwards
  virtual void receive(Port& port) = 0;  // delivers the next packet; at most one such request is open
  // Whether something of the port waits to be served, in its turn or on its socket. False for an unknown port.
  virtual bool waits(const Port& port) const = 0;
  virtual void await_writable(Port& port, bool on) = 0;  // edges come between on and off; a first, empty one may come
  // Waits until something is ready or `timeout` ns (-1: for ever) have passed, and makes the calls. An error is the
  // broker's own and is global: the loop cannot continue.
  virtual Sys<void> run_once(std::int64_t timeout) = 0;
  // Odd while this thread is at work, even while it waits (keep/keeper.hpp). Without keepers nobody looks.
  void tell_beat(std::atomic<std::uint32_t>& beat) { beat_ = &beat; }
  // Still at work: between the parts of a start that may take long.
  void step() {
    next_beat();
    next_beat();
  }

 protected:
  void at_rest() { next_beat(); }
  void at_work() { next_beat(); }

 private:
  // This thread alone writes it.
  void next_beat() { beat_->store(beat_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  std::atomic<std::uint32_t> own_beat_{1};
  std::atomic<std::uint32_t>* beat_ = &own_beat_;
};

struct ChosenEngine {
  std::unique_ptr<Engine> engine;
  bool io_uring = false;
  std::string
      reason;  // for `status`: "io_uring: SINGLE_ISSUER, DEFER_TASKRUN" or "epoll: io_uring is forbidden here ..."
};
// `automatic` takes io_uring where it works. An engine that was asked for by name and does not work is an error, and is
// never replaced (law 12).
Result<ChosenEngine> choose_engine(EngineChoice choice);

Sys<std::unique_ptr<Engine>> make_epoll_engine();
// The error is a sentence; `how` names the set-up flags in use. Without liburing in the build it always fails.
Result<std::unique_ptr<Engine>> make_uring_engine(std::string& how);

}  // namespace shmb::daemon
