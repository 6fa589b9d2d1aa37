// SPDX-License-Identifier: Apache-2.0
// Seals, on threads of their own. F_ADD_SEALS takes the lock of the file, which a client holds for as long as a
// write(2) of its own to that memory takes, and it can make one that never ends; and it waits up to 165 ms for pages
// that something still refers to, a pipe or an io_uring of the client's (both measured, Linux 6.18). So it is never
// called on the broker's thread once a client has the descriptor: the request is held back, its session alone waits,
// and is served again when the seals are on or refused.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "daemon/books.hpp"

namespace shmb::daemon {

class Session;
class World;
struct Region;

// How many seals may be stuck: of the memory of one uid, and of all.
inline constexpr std::uint32_t kSealsOfUid = 4;
inline constexpr std::size_t kSealThreads = 64;

class Sealer {
 public:
  struct Job {
    std::uint64_t region = 0;
    std::uint32_t uid = 0;  // whose memory it is
    int seals = 0;
    Fd fd;
    int code = 0;  // errno, when it is done
  };
  Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;
  ~Sealer();  // leaves alone what is stuck
  // `wake_fd` is signalled when it is done. False: no thread could be started.
  bool seal(Job job, int wake_fd);
  void finished(std::vector<Job>& out);

 private:
  struct Load {
    std::uint32_t waiting = 0, running = 0;
  };
  // Of the threads as well: one that is stuck outlives the sealer.
  struct Shared {
    std::mutex mutex;
    std::condition_variable ready, gone;
    std::pmr::unsynchronized_pool_resource memory;  // never shrinks: in steady state nothing is allocated
    std::pmr::map<std::pair<std::uint32_t, std::uint64_t>, Job> waiting{&memory};  // by uid, oldest first
    std::pmr::map<std::uint32_t, Load> loads{&memory};                             // of uids that have something here
    std::vector<Job> finished;
    std::uint64_t last = 0;
    std::size_t threads = 0, busy = 0;
    int wake = -1;
    bool stop = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);
  static std::size_t startable(const Shared& shared);
  static bool take(Shared& shared, Job& job);

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

// Seals that are being put on a region, and who waits for that.
struct Sealing {
  Sealing(int wanted, std::uint32_t user, std::pmr::memory_resource& memory)
      : seals(wanted), uid(user), waiters(&memory) {}
  int seals;
  std::uint32_t uid;  // of the session that asked first: the copy of the descriptor counts in its share of the table
  std::pmr::vector<std::uint64_t> waiters;  // sessions
};

// What the request that a session has in service waits for, or has waited for until it was served again.
struct AwaitedSeals {
  std::uint64_t region = 0;
  int seals = 0;
  bool done = false;
  int code = 0;  // errno
  // Taken beforehand, because seals cannot be taken back for want of a descriptor or by a limit.
  Fd reader;
  Charge charge;
  bool counted = false;               // the reader, as one that its session's user has waiting
  std::optional<Error> refusal = {};  // why they were not begun
};

// Those that are being put on now, or 0.
int seals_under_way(const World& world, const Region& region);
// How these went for the request in service, or nullptr.
AwaitedSeals* awaited_seals(Session& session, const Region& region, int seals);
// Begins them, or joins what is under way, which may be others: then the caller looks anew afterwards. The caller holds
// its request back.
Result<void> await_seals(World& world, Session& session, Region& region, int seals, Fd reader, Charge charge = {});
void forget_awaited(World& world, Session& session);  // its request is answered
void seals_done(World& world);                        // after a thread woke us: whoever waits is served again

}  // namespace shmb::daemon
