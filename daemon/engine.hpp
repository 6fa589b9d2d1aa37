// SPDX-License-Identifier: Apache-2.0
// How the broker waits: one loop, one thread, two kernels' ways of doing it (epoll, io_uring) behind one interface.
// A session's next packet is delivered only when it was asked for, so a request in service holds back the ones behind
// it in the peer's own socket buffer and not in ours. What is ready is served in turns (turns.hpp), a slice at a time;
// between two slices the kernel is asked for what has become ready meanwhile. Nothing is allocated per packet.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/sys_socket.hpp"
#include "daemon/config.hpp"
#include "daemon/turns.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

// Before the kernel is asked again for what it had no memory for.
inline constexpr std::int64_t kMemoryPause = 10'000'000;
// Served between two looks at what is ready (ns): so long one that is served in its turn may wait for that look.
inline constexpr std::int64_t kSlice = 50'000;

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
  // The packet that was asked for. `bytes` lives until the call returns. Size 0 is end of file or an empty packet,
  // which look alike to recvmsg(2); `error` is the errno of a receive that failed for good.
  struct Arrival {
    wire::Bytes bytes;
    bool truncated = false;  // longer than any message may be
    // Control data other than descriptors came, too, or the table is full and the kernel has dropped some of them.
    bool bad_control = false;
    // All that came, whether or not the port may bring any, because the kernel closes what finds no room on the thread
    // that receives; and the last close of a socket may wait for its peer. Not to be closed on this thread.
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
  std::function<void(std::vector<Fd>)> discard;  // what a peer sent for a port that is gone; empty: closed here
  Turns turns;
  // Called as soon as it is seen, or, with a process, in that one's turn.
  virtual Sys<void> watch(int fd, Waiter& waiter, Turns::Process* process = nullptr) = 0;
  virtual void unwatch(Waiter& waiter) = 0;  // before its descriptor is closed; no call comes afterwards
  virtual Sys<void> add(int fd, Port& port, Turns::Process& process) = 0;  // calls come in its turns
  virtual void remove(Port& port) = 0;   // before its socket is closed; no call comes afterwards
  virtual void receive(Port& port) = 0;  // the next packet; at most one ask stands
  // Something waits to be served: in its turn, or on its socket. False for a port that is not here.
  virtual bool waits(const Port& port) const = 0;
  virtual void await_writable(Port& port, bool on) = 0;  // edges between on and off; a first, idle one may come
  // Waits until something is ready or `timeout` ns (-1: for ever) have passed, and makes the calls. An error is ours
  // and global: the loop cannot go on.
  virtual Sys<void> run_once(std::int64_t timeout) = 0;
};

struct ChosenEngine {
  std::unique_ptr<Engine> engine;
  bool io_uring = false;
  std::string
      reason;  // for `status`: "io_uring: SINGLE_ISSUER, DEFER_TASKRUN" or "epoll: io_uring is forbidden here ..."
};
// `automatic` takes io_uring where it works; a forced engine that does not work is an error, never replaced (law 12).
Result<ChosenEngine> choose_engine(EngineChoice choice);

Sys<std::unique_ptr<Engine>> make_epoll_engine();
// The error is a sentence; `how` names the set-up flags in use. Without liburing in the build it always fails.
Result<std::unique_ptr<Engine>> make_uring_engine(std::string& how);

}  // namespace shmb::daemon
