// SPDX-License-Identifier: Apache-2.0
// Two keepers and the broker: three processes with one descriptor table. The process that was started takes the lock
// and the sockets. Then it becomes the main keeper, and starts the second keeper and the broker as copies of itself.
//
//     main keeper ---- starts ----> second keeper      takes over when the main keeper is gone
//          \---------- starts ----> broker             serves; all keepers and brokers have the same descriptors
//
// - The broker ends by a signal or with an error: the main keeper starts the next one as a copy of itself. The memory
//   of the keeper is clean: no client has ever changed it. The listening sockets stay open, so a client that connects
//   meanwhile waits for a moment. The next broker begins from the books of its predecessor
//   (daemon/serve/load_books.hpp), and goes on with the sessions that can. It closes the other descriptors that this
//   one left open (leftovers.hpp), so a client whose session cannot go on sees end of file.
// - A keeper ends: the other keeper starts a new one. The broker never does, because its memory is not clean.
// - The broker ends in order, or by its own fault before any broker has served: both keepers end too, with its status.
//
// A keeper has one thread, allocates nothing, and waits for signals and for a word of shared memory alone. It reads no
// descriptor that a client or a broker could have changed. The words that the broker writes (Board) can only make it
// end a broker or start one. The pids that it signals are in memory that no broker maps (Between). So an attacker who
// controls the broker gains no right by the keepers. The attacker can only end the service.
//
// The main keeper learns of the broker's end in one of two ways. It reaps the broker, or it sees a mark in a word of
// shared memory (Board::alive). The main thread of the broker registers that word, and the kernel marks it when the
// thread ends. The mark is needed if the broker is no child of this keeper, or if a thread of it sleeps in the kernel
// for ever. An example is close(2) of a file that a client serves and never answers for. Such a thread never runs
// again, and the keeper does not wait for it.
//
// A broker that is at work, and whose beat stands still for 10 s, hangs and is killed. One that waits for clients, or
// that is stopped or traced, does not hang.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mapping.hpp"
#include "base/result.hpp"
#include "base/sys_keep.hpp"

namespace shmb::daemon::keep {

// A broker tells its keepers, and the brokers after it, these facts.
struct Board {
  sys::LastWord alive;                   // of its main thread
  std::atomic<std::uint32_t> beat{1};    // odd: at work; even: it waits. Changes with each turn
  std::atomic<std::uint32_t> served{0};  // 1: a broker has said that clients can connect
  std::atomic<std::uint32_t> ended{0};   // 1: in order, and with status 0
  // For the next broker alone; no keeper looks at them.
  std::atomic<std::int32_t> books{-1};  // the descriptor of the books to begin from
  std::atomic<std::uint32_t> begun{0};  // brokers that began from them and died by a fault of their own, and this one
  std::atomic<std::uint32_t> unserved{0};  // brokers in a row that have not served
  std::atomic<std::int64_t> started{0};    // CLOCK_MONOTONIC, of the last one
  std::atomic<std::uint32_t> faults{0};    // brokers in a row that died by their own fault soon after their start
  std::atomic<std::uint32_t> hung{0};      // 1: keepers have killed the last one, because it hung
};

struct Keep {
  std::vector<std::string> sockets;    // files to remove when the end is asked for and no broker is left to do it
  std::string notify;                  // NOTIFY_SOCKET: gets the pid of a new main keeper; empty: there is none
  std::int64_t hang = 10'000'000'000;  // ns at work without a step, after which a broker hangs
};

inline constexpr std::uint32_t kBeginsAtMost = 3, kFaultsAtMost = 3;
// One broker's share.
struct Life {
  Board* board = nullptr;
  std::uint32_t before = 0;  // brokers before it
  std::string last;          // how the one before it ended: "was killed by signal 9 (Killed)"
  bool at_fault = false;     // and that was not a kill from outside
  // For its ends. An orderly one, with status 0, ends the keepers too.
  bool has_served() const { return board->served.load(std::memory_order_acquire) != 0; }  // this one or an earlier one
  void served() const {
    board->begun.store(0, std::memory_order_release);
    board->unserved.store(0, std::memory_order_release);
    board->served.store(1, std::memory_order_release);
  }
  void step() const { board->beat += 2; }  // on a busy host a start may take its time
  // Counts this one. Returns how many before it in a row have not served. The kernel may kill each of them for memory.
  std::uint32_t begins() const;
  // No session goes on: a request that its client sends again to each broker may be the fault that ends them.
  bool ends_sessions() const { return board->faults.load(std::memory_order_acquire) >= kFaultsAtMost; }
  // The books to begin from, or -1. Three brokers in a row that began from them and died by their own fault give them
  // up: else a fault that they cause would come again for ever. A kill from outside never costs them.
  int last_books() const;
  bool gave_up() const { return board->begun.load(std::memory_order_acquire) >= kBeginsAtMost; }  // where it was -1
  void use_books(int number) const { board->books.store(number, std::memory_order_release); }     // -1: none
  void ended() const { board->ended.store(1, std::memory_order_release); }
};

// An exit status of a broker that cannot be replaced: a socket of the service manager is gone from the table.
inline constexpr int kCannotGoOn = 3;

// Why there can be no keepers here; empty: there can.
std::string no_keepers();
// Call with one thread. It returns in a broker, each time that one is started, and never in a keeper. In the process
// that was started it returns only an error: it is then no keeper, and nothing is left of the second one.
Result<Life> keep_broker(const Keep& keep);

}  // namespace shmb::daemon::keep
