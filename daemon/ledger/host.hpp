// SPDX-License-Identifier: Apache-2.0
// The parts of the process that every registry needs: configuration, facts, clock, log, timers, and one pool of memory.
// One thread needs no lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/start/config.hpp"

namespace shmb::daemon {

struct BrokerFacts {
  shmbw_engine engine = SHMBW_ENGINE_NONE;
  std::string engine_reason;        // why this engine, for `status`
  std::vector<std::string> losses;  // one sentence for each feature that is not available, with the reason
  std::string version;              // "shmbrokerd 0.1.0"
  std::string kernel;               // KernelFeatures::release
  std::uint64_t features = 0;       // shmbw_feature_flags found
  bool exec_seal = false;           // regions are born with MFD_NOEXEC_SEAL
  std::uint64_t epoch = 0;          // random, never 0; 0: make_broker draws one
  std::uint32_t uid = 0;            // the broker's own, after the drop
  std::uint32_t pid = 0;
  std::uint64_t descriptors_limit = 0;  // size of the table; 0: RLIMIT_NOFILE's soft value
  std::uint64_t mappings_limit = 0;     // of this process; 0: vm.max_map_count
  // Descriptors that the transport and the process hold (sockets, pidfds, queued replies, engine). The ledger counts
  // those of regions itself. Empty: two for each session.
  std::function<std::uint32_t()> transport_descriptors;
  std::function<std::uint32_t()> in_flight;                 // sent and not read yet, all sessions; may be empty
  std::function<void(int priority, std::string_view)> log;  // syslog priorities; may be empty
  std::function<void()> descriptor_freed;                   // a paused listener may go on; may be empty
  // Told once, with the descriptor of the books: from now on a later broker begins from these. May be empty.
  std::function<void(int)> books_are_at;
  std::function<std::int64_t()> now;        // CLOCK_BOOTTIME ns; empty: the real clock
  std::function<std::uint32_t()> last_pid;  // pid of the newest process, 0 unknown; empty: the kernel is asked
  std::function<std::optional<std::uint64_t>()>
      memory_stall;                       // us that processes stalled for memory; empty: the kernel is asked
  std::int64_t tick_at_most = INT64_MAX;  // ns of due timers in one tick; the others wait for the next
  std::uint64_t books_copied = std::uint64_t{64} << 20;  // bytes of the largest copy of the books
  // After so many calls from the transport records and objects are compared; a difference is logged as a bug. 0: never.
  std::uint32_t compare_books = 0;
  bool resumable = false;  // another broker can take its sessions over: it grants the feature RESUME
};

class Session;
struct Fork;
struct GpuMemory;
struct GpuNode;
struct Group;
struct LaneBook;
struct LaneHold;
struct Lease;
struct Participant;
struct Pool;
struct QueueBook;
struct Reference;
struct Region;
struct SessionNumbers;
struct StoredAnswer;
struct Ticket;
struct Watch;
struct Worker;
struct World;

// The books, and the objects whose records must be written again.
struct Books {
  books::Store store;
  std::size_t noted = 0;  // objects in these lists
  books::Changed<Session> sessions{noted};
  books::Changed<SessionNumbers> numbers{noted};
  books::Changed<StoredAnswer> answers{noted};
  books::Changed<Region> regions{noted};
  books::Changed<Group> groups{noted};
  books::Changed<Lease> leases{noted};
  books::Changed<Ticket> tickets{noted};
  books::Changed<Watch> watches{noted};
  books::Changed<World> worlds{noted};
  books::Changed<Worker> workers{noted};
  books::Changed<Reference> references{noted};
  books::Changed<Fork> forks{noted};
  books::Changed<Pool> pools{noted};
  books::Changed<Participant> participants{noted};
  books::Changed<GpuMemory> gpu_memories{noted};
  books::Changed<GpuNode> gpu_nodes{noted};
  books::Changed<QueueBook> queues{noted};
  books::Changed<LaneBook> lanes{noted};
  books::Changed<LaneHold> holds{noted};

  // Calls it for the lists that have something, most often the first.
  template <class Body>
  void each_kind(Body body) {
    std::size_t left = noted;
    const auto visit = [&](auto&... lists) {
      const auto one = [&](auto& list) {
        if (list.count() != 0) {
          left -= list.count();
          body(list);
        }
        return left != 0;
      };
      (void)(one(lists) && ...);
    };
    visit(leases, regions, sessions, numbers, answers, tickets, groups, watches, worlds, workers, references, forks,
          pools, participants, queues, lanes, holds, gpu_memories, gpu_nodes);
  }
  // The object is about to end, and its record with it.
  template <class Record, class T>
  void end(books::Changed<T>& changed, T& item) {
    changed.forget(item);
    store.erase<Record>(item.place);
  }
};

struct Host {
  Host(const Config& configuration, BrokerFacts facts_in, books::Store store)
      : config(configuration),
        facts(std::move(facts_in)),
        books{std::move(store)},
        started(facts.now()),
        own_bug([this](std::string_view text) { log(3, text); }) {}
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  std::int64_t now() const { return facts.now(); }
  void log(int priority, std::string_view text) const { facts.log(priority, text); }
  bool private_mode() const { return config.mode == Mode::private_; }
  // Law 6: mode 0600 does not bind a process of the file owner's uid.
  bool mode_bits_bind(std::uint32_t uid) const { return !private_mode() && uid != facts.uid; }
  // A listener that waits for a free descriptor may go on.
  void descriptor_freed() const {
    if (facts.descriptor_freed) facts.descriptor_freed();
  }

  Config config;  // only its limits change, at a reload
  BrokerFacts facts;
  Books books;
  const std::int64_t started;
  Account::Report own_bug;
  // Nodes of all tables. Chunks of at most 256: the default lets a table of 10,000 regions reserve half as much again.
  // It never shrinks, so a broker in steady state does not allocate.
  std::pmr::unsynchronized_pool_resource nodes{std::pmr::pool_options{256, 2048}};
  Timers timers;
  std::uint64_t last_serial = 0;  // numbers the rows of the tables that LIST shows
};

}  // namespace shmb::daemon
