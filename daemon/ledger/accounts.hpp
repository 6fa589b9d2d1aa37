// SPDX-License-Identifier: Apache-2.0
// The registry of users: what the host and each user use, their limits, and the budget of descriptors. A user is known
// while it has a session, group, ticket or closing file.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/closer.hpp"
#include "daemon/kit/rate.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/watch.hpp"

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

// The budget of descriptors is one number, because the kernel has one table for the process: descriptors(). It counts
// sessions (two each), regions, pools, GPU exports, and all that waits to be closed or sent. A part of the table is
// kept for administrators. In system mode each user has a share of the rest, which shrinks as more users come. So one
// user can never take the last descriptors of all others.
struct Accounts {
  explicit Accounts(Host& host);
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  Uid& hold_uid(std::uint32_t uid);
  void drop_uid(std::uint32_t uid);
  void apply_limits();  // those of the configuration, to all of these accounts
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

  Host& host;
  Account all;  // of the host
  std::pmr::map<std::uint32_t, Uid> uids;
  PerUidCloser client_files;
  std::map<std::uint32_t, Rate> creates;  // of users whose buckets are not full
  std::uint64_t open_descriptors = 0;     // of regions
  std::uint64_t live_sessions = 0;
  std::uint64_t requests = 0, refusals = 0;
  void note_refusal(const Error& error);
  // System mode: takes one create from the user's rate. The limit that is in the way, if there is one.
  std::optional<Shortage> take_create(std::uint32_t uid, bool admin);

  // By slot and scope: how often that limit has refused, and the time of the last log line.
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint64_t> refused_by;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::int64_t> refusals_logged;
  struct Holders {
    std::uint64_t request = 0;
    std::uint16_t slot = 0, scope = 0;
    std::uint64_t scope_id = 0;
    std::string text;
  } holders;  // of the last refusal
};

}  // namespace shmb::daemon
