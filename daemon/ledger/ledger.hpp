// SPDX-License-Identifier: Apache-2.0
// The ledger: everything that the broker knows, in one object on one thread.
//
// It owns the registries: users, sessions, groups, regions, pools, worlds of workers, tickets, watches and opened GPU
// nodes. Sessions, groups, regions, pools and worlds have 64-bit ids that are never reused. The nouns (region, lease,
// group, ...) are functions over the ledger. It also owns what goes on between requests: timers, helper threads for
// closes, seals and GPU nodes, and the one reply that is being built.
//
// These rules hold after each call from the transport:
// - A lease, name, ticket or hold is booked before the reply leaves (law 1).
// - Each object carries its own charges, and its destruction gives them back. So no path can forget one.
// - A region is live, on a shelf, or being closed. A live region has a holder: a lease, a name, a ticket or a pool.
// - Nothing here waits (law 8). Waiting is a watch. Long work runs in portions by a timer, or on a helper thread that
//   reports through `wake_fd`.
//
// One thread needs no lock, and no request sees half of a change: a death touches most registries at once. Nodes come
// from one pool of memory that never shrinks, so a broker in steady state does not allocate.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/gpu/device.hpp"
#include "daemon/kit/closer.hpp"
#include "daemon/kit/secret.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/ledger/group.hpp"
#include "daemon/ledger/idle_holds.hpp"
#include "daemon/ledger/reclaim.hpp"
#include "daemon/ledger/region.hpp"
#include "daemon/ledger/sealer.hpp"
#include "daemon/ledger/session.hpp"
#include "daemon/ledger/ticket.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/remote/failed_worlds.hpp"
#include "daemon/remote/world.hpp"
#include "daemon/serve/broker.hpp"

namespace shmb::daemon {

struct Uid {
  Uid(std::uint32_t uid, Account& host, const Account::Report& report);
  Account account;
  std::uint32_t users = 0;             // sessions, groups and tickets that point here
  std::vector<std::uint64_t> refused;  // sessions over the limit, oldest first
  std::uint32_t doorbells = 0;
  // Descriptors that count for this user: opened for replies that are not sent yet, come with requests that wait, to be
  // sealed, and pidfds.
  std::uint64_t waiting = 0;
  std::uint32_t pidfds = 0;         // those of them that belong to processes whose sessions are over
  std::uint32_t tickets_left = 0;   // whose makers have ended, and which end with no session
  std::uint64_t bytes_freeing = 0;  // of regions that the helper thread is closing
  Watchers reclaims;
};

// Looks up by owner and name without making a string.
struct GroupNameLess {
  using is_transparent = void;
  using View = std::pair<std::uint32_t, std::string_view>;
  template <class A, class B>
  bool operator()(const A& a, const B& b) const {
    return View(a.first, a.second) < View(b.first, b.second);
  }
};

class Ledger {
 public:
  Ledger(const Config& config, BrokerFacts facts, const Secret& hash_key);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  std::int64_t now() const { return facts.now(); }
  // The transport has called in: the allowances of one turn on this thread start again.
  void begin_turn() {
    closed_here = 0;
    releaser.begin_turn();
  }
  void log(int priority, std::string_view text) const { facts.log(priority, text); }
  bool private_mode() const { return config.mode == Mode::private_; }
  // Law 6: mode 0600 does not bind a process of the file owner's uid.
  bool mode_bits_bind(const Session& session) const { return !private_mode() && session.uid != facts.uid; }

  Uid& hold_uid(std::uint32_t uid);
  void drop_uid(std::uint32_t uid);
  Region* find_region(std::uint64_t id);    // live ones only
  Session* find_session(std::uint64_t id);  // greeted or not, not ended
  // All descriptors in use, and whether `wanted` more fit below the reserve.
  std::uint64_t descriptors() const;
  bool descriptors_left(std::uint64_t wanted, bool admin) const;
  // The limit that is in the way of `wanted` more for this user: the table or, in system mode, its share of it.
  std::optional<Shortage> descriptor_shortage(std::uint32_t uid, std::uint64_t wanted, bool admin) const;
  std::optional<Shortage> share_shortage(std::uint32_t uid, std::uint64_t wanted) const;
  // Descriptors that were opened for a user's reply and wait for its next turn count for that user. False: its share or
  // the table has no room for that many plus those of a whole message. Then the reply does not wait. So waiting
  // descriptors never cause a refusal of the user's next session.
  bool may_wait(std::uint32_t uid, std::uint64_t lent) const;
  // Adds `change` to the waiting descriptors of this user.
  void count_waiting(std::uint32_t uid, std::int64_t change);
  std::uint64_t descriptor_share(std::uint32_t uid) const;
  std::uint64_t descriptors_of(std::uint32_t uid) const;
  // Whether so many descriptors made by this user's clients wait for their close that no more should be taken. They
  // count in its share of the table, because a client can make one whose close never returns.
  bool closes_too_many(std::uint32_t uid) const;
  // Called when a session is over and a report waits for its process' exit status: counts the pidfd for its user.
  // False: the user's share, or the table, has no room for it. Then the report goes without an exit status. So a user
  // whose processes connect and leave all the time still gets sessions, and leaves room to others.
  bool keep_pidfd(std::uint32_t uid);
  void close_pidfd(std::uint32_t uid);

  const Config config;
  BrokerFacts facts;
  const std::int64_t started;
  Account::Report own_bug;
  // Chunks of at most 256 nodes: the default lets a table of 10,000 regions reserve half as much again.
  std::pmr::unsynchronized_pool_resource pool{std::pmr::pool_options{256, 2048}};
  Timers timers;
  IdleHolds idle_holds{*this};
  TimelineReleaser releaser{*this};
  Account host;
  std::pmr::map<std::uint32_t, Uid> uids;
  std::pmr::map<std::uint64_t, Group> groups;
  std::pmr::map<std::pair<std::uint32_t, std::string>, Group*, GroupNameLess> group_names;
  std::pmr::unordered_map<Secret, Group*, SecretHash, SecretSame> group_tokens;
  std::pmr::map<std::uint64_t, Session> sessions;
  std::pmr::map<std::uint64_t, Region> regions;
  std::pmr::map<std::uint64_t, Pool> pools;
  std::pmr::map<std::uint64_t, World> worlds;
  std::pmr::map<std::pair<std::uint32_t, std::uint32_t>, World*> world_ports;  // by uid and port
  FailedWorlds failed_worlds;
  Tickets tickets;
  TicketsInOrder tickets_in_order{&pool};
  List<Shelf, OfLedger> filled_shelves;  // a refusal searches these, not all groups
  NameWatches name_watches;
  Watchers all_reclaims;  // of admins; those of others are in their Uid
  std::pmr::map<std::uint64_t, ReclaimReport> reports;
  std::pmr::map<std::uint64_t, ClosingPool> closing_pools{&pool};
  Closer closer;  // closes freed regions
  PerUidCloser client_files;
  GpuLooker gpu_looker;
  Sealer sealer;
  std::pmr::map<std::uint64_t, Sealing> sealings{&pool};      // in progress, by region
  std::vector<Sealer::Job> sealed;                            // those that are done
  std::map<std::uint32_t, std::weak_ptr<GpuNode>> gpu_nodes;  // opened by the broker, by minor
  Tally* tally = nullptr;                                     // counts frees while a session or a group ends

  std::uint64_t last_region = 0, last_group = 0, last_session = 0, last_serial = 0, last_world = 0;
  std::int64_t last_reference = 0;     // time of the last booking; each has its own
  std::uint64_t open_descriptors = 0;  // of regions
  std::set<Lease*> kept_leases;        // mappings that their sessions give back on request
  std::uint64_t bytes_cached = 0, live_sessions = 0, lease_count = 0, watch_count = 0, region_count = 0;
  std::uint64_t requests = 0, refusals = 0, reclaims = 0, bytes_reclaimed = 0;

  // by slot and scope: time of the last log line
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::int64_t> refusals_logged;

  struct Holders {
    std::uint64_t request = 0;
    std::uint16_t slot = 0, scope = 0;
    std::uint64_t scope_id = 0;
    std::string text;
  } holders;                      // of the last refusal
  std::uint64_t closed_here = 0;  // bytes closed on this thread since the transport called in

  std::unique_ptr<std::byte[]> reply_buffer;  // the one reply being built
  std::vector<int> reply_fds;
  std::vector<Fd> reply_owned;  // reopened for this reply, closed after it
};

}  // namespace shmb::daemon
