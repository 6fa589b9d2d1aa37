// SPDX-License-Identifier: Apache-2.0
// Seals are added on threads of their own. F_ADD_SEALS takes the lock of the file. A client holds that lock for as long
// as its own write(2) to the memory takes, and it can make a write that never ends. F_ADD_SEALS also waits up to 165 ms
// for pages that a pipe or an io_uring of the client still refers to (both measured, Linux 6.18). So it is never called
// on the broker's thread once a client has the descriptor. The request is held back, and only its session waits. It is
// served again when the seals are on or refused.
//
// The steps: await_seals() notes in the session what the request waits for, and starts the job unless another request
// has. The thread adds the seals and signals the broker. seals_done() enters the result in the books, and every waiting
// request is served again from its beginning. It then finds its note (awaited_seals), with the descriptor and the
// charge that it had taken before. A seal that hangs for ever holds one thread, one of the few that its user may hang.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/helper_threads.hpp"

namespace shmb::daemon {

class Session;
struct Accounts;
struct Regions;
struct Sessions;
struct Region;

// The number of seals that may hang: of the memory of one uid, and in total.
inline constexpr std::uint32_t kSealsOfUid = 4;
inline constexpr std::size_t kSealThreads = 64;

class Sealer {
 public:
  struct Job {
    std::uint64_t region = 0;
    std::uint32_t uid = 0;  // owner of the memory
    int seals = 0;
    Fd fd;
    int code = 0;  // errno, when it is done
  };
  // `wake_fd` is signalled when the seal is done. False: no thread could be started.
  bool seal(Job job, int wake_fd);
  void finished(std::vector<Job>& out);

 private:
  struct Load {
    std::uint32_t waiting = 0, running = 0;
  };
  struct State : HelperState {
    void run(std::unique_lock<std::mutex>& lock);
    bool take(Job& job);
    std::pmr::unsynchronized_pool_resource memory;  // never shrinks: in steady state nothing is allocated
    std::pmr::map<std::pair<std::uint32_t, std::uint64_t>, Job> waiting{&memory};  // by uid, oldest first
    std::pmr::map<std::uint32_t, Load> loads{&memory};                             // of uids that have jobs here
    std::vector<Job> finished;
    std::uint64_t last = 0;
    std::size_t busy = 0;
    int wake = -1;
  };
  HelperThreads<State> threads_;
};

// Seals that are being added to a region, and the sessions that wait for them.
struct Sealing {
  Sealing(int wanted, std::uint32_t user, std::pmr::memory_resource& memory)
      : seals(wanted), uid(user), waiters(&memory) {}
  int seals;
  // of the session that asked first: the copy of the descriptor counts in this uid's share of the table
  std::uint32_t uid;
  std::pmr::vector<std::uint64_t> waiters;  // sessions
};

// Seals that the request in service waits for, or has waited for until it was served again.
struct AwaitedSeals {
  std::uint64_t region = 0;
  int seals = 0;
  bool done = false;
  int code = 0;  // errno
  // Opened beforehand, because seals cannot be undone when a descriptor is missing or a limit is met.
  Fd reader;
  Charge charge;
  bool counted = false;               // the reader counts as a waiting descriptor of its session's user
  std::optional<Error> refusal = {};  // why they were not begun
};

// The seals that are being added now, or 0.
int seals_under_way(const Regions& regions, const Region& region);
// The result of these seals for the request in service, or nullptr.
AwaitedSeals* awaited_seals(Session& session, const Region& region, int seals);
// Begins the seals, or waits for those in progress, which may be others: then the caller checks again afterwards. The
// caller holds its request back.
Result<void> await_seals(Sessions& sessions, Session& session, Region& region, int seals, Fd reader,
                         Charge charge = {});
void forget_awaited(Accounts& accounts, Session& session);  // its request has been answered
void seals_done(Sessions& sessions);  // after a thread has signalled: serves the waiting sessions again

}  // namespace shmb::daemon
