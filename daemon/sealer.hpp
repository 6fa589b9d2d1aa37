// SPDX-License-Identifier: Apache-2.0
// Publishing, on threads of its own. F_ADD_SEALS takes the lock of the file, which a client holds for as long as a
// write(2) of its own to that memory takes, and it can make one that never ends; and it waits up to 165 ms for pages
// that something still refers to, a pipe or an io_uring of the client's (both measured, Linux 6.18). So it is never
// called on the broker's thread once a client has the descriptor in system mode: the request is held back, its session
// alone waits, and is served again when the seal is on or refused.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

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

// One publication under way, and who waits for it.
struct Publication {
  struct Waiter {
    std::uint64_t session = 0;
    Fd reader;  // opened beforehand: the seals cannot be taken back for want of a descriptor
  };
  explicit Publication(std::pmr::memory_resource& memory) : waiters(&memory) {}
  std::pmr::vector<Waiter> waiters;
  std::uint64_t descriptors = 1;  // the copy that is being sealed, and the readers
  bool done = false;
  int code = 0;

  Fd take_reader(std::uint64_t session);  // empty: this session waits for it without one
};

// The one of this region, if there is one.
Publication* publication_of(World& world, const Region& region);
bool is_being_published(World& world, const Region& region);
// Begins it, or joins the one that is under way. The caller holds its request back.
Result<void> await_publication(World& world, const Session& session, Region& region, Fd reader);
void publications_done(World& world);  // after a thread woke us: whoever waits is served again

}  // namespace shmb::daemon
