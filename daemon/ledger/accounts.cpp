// SPDX-License-Identifier: Apache-2.0
// Limits of each user from the configuration, and the shares of the descriptor table.
#include "daemon/ledger/accounts.hpp"

#include <algorithm>

namespace shmb::daemon {
namespace {

// The number of client-made descriptors of one user that may wait for their close: sixteen messages of the largest
// number. kClosesAlways may wait even if the user's share of the table has no room.
constexpr std::size_t kClosesAtMost = 4096, kClosesAlways = 16;

}  // namespace

Uid::Uid(std::uint32_t uid, Account& host, const Account::Report& report)
    : account(SHMBW_SCOPE_UID, uid, &host, &report) {}

Accounts::Accounts(Host& around)
    : host(around), all(SHMBW_SCOPE_HOST, 0, nullptr, &around.own_bug), uids(&around.nodes) {
  apply_limits();
}

// The limit of a table whose default is "as many as the descriptor table allows".
static std::uint64_t table_limit(std::uint64_t configured) { return configured ? configured : Account::kNoLimit; }

static void apply_limits_of(const Limits& limits, std::uint32_t uid, Account& account) {
  auto found = limits.uid.find(uid);
  const LimitOverride own = found == limits.uid.end() ? LimitOverride{} : found->second;
  account.set_limit(Resource::bytes, own.bytes.value_or(table_limit(limits.uid_bytes)));
  account.set_limit(Resource::regions, own.regions.value_or(table_limit(limits.uid_regions)));
  account.set_limit(Resource::leases, own.leases.value_or(limits.uid_leases));
  account.set_limit(Resource::sessions, own.sessions.value_or(table_limit(limits.uid_sessions)));
  account.set_limit(Resource::groups, own.groups.value_or(limits.uid_groups));
  account.set_limit(Resource::tickets, own.tickets.value_or(limits.uid_tickets));
  account.set_limit(Resource::names, own.names.value_or(limits.uid_names));
  account.set_limit(Resource::watches, own.watches.value_or(limits.uid_watches));
  account.set_limit(Resource::worlds, own.worlds.value_or(limits.uid_worlds));
  account.set_limit(Resource::references, own.references.value_or(limits.uid_references));
  account.set_limit(Resource::gpu_bytes, own.gpu_bytes.value_or(table_limit(limits.uid_gpu_bytes)));
  account.set_limit(Resource::gpu_descriptors, own.gpu_descriptors.value_or(limits.uid_gpu_descriptors));
  account.set_limit(Resource::timelines, own.timelines.value_or(limits.uid_timelines));
}

void Accounts::apply_limits() {
  const Limits& limits = host.config.limits;
  all.set_limit(Resource::bytes, table_limit(limits.host_bytes));
  all.set_limit(Resource::gpu_bytes, table_limit(limits.gpu_bytes));
  // The other half is for pools, threads and the heap.
  all.set_limit(Resource::timelines, host.facts.mappings_limit / 2);
  for (auto& [uid, user] : uids) apply_limits_of(limits, uid, user.account);
}

Uid& Accounts::hold_uid(std::uint32_t uid) {
  auto [at, fresh] = uids.try_emplace(uid, uid, all, host.own_bug);
  Uid& out = at->second;
  ++out.users;
  if (fresh) apply_limits_of(host.config.limits, uid, out.account);
  return out;
}

void Accounts::drop_uid(std::uint32_t uid) {
  auto at = uids.find(uid);
  if (at != uids.end() && --at->second.users == 0) uids.erase(at);
}

void Accounts::note_refusal(const Error& error) {
  ++refusals;
  if (error.shortage.slot != SHMBW_SLOT_NONE) ++refused_by[{error.shortage.slot, error.shortage.scope}];
}

std::optional<Shortage> Accounts::take_create(std::uint32_t uid, bool admin) {
  if (host.private_mode() || uid == 0 || admin) return std::nullopt;
  const auto own = host.config.limits.uid.find(uid);
  const std::uint64_t rate = own != host.config.limits.uid.end() && own->second.creates
                                 ? *own->second.creates
                                 : host.config.limits.uid_creates;
  if (rate == 0) return std::nullopt;
  auto at = creates.find(uid);
  if (at == creates.end()) {
    std::erase_if(creates, [now = host.now()](const auto& entry) { return entry.second.full(now); });
    at = creates.try_emplace(uid).first;
  }
  if (at->second.take(host.now(), rate)) return std::nullopt;
  return Shortage{SHMBW_SLOT_CREATES, SHMBW_SCOPE_UID, uid, rate, rate, 1};
}

std::uint64_t Accounts::descriptors() const {
  // Without a figure from the transport: a socket and a pidfd for each session, and the standard streams.
  std::uint64_t transport =
      host.facts.transport_descriptors ? host.facts.transport_descriptors() : 2 * live_sessions + 3;
  return open_descriptors + client_files.waiting() + transport;
}

// Regions, pools and timelines; sockets and pidfds; doorbells, GPU exports, what waits, and what is being closed.
std::uint64_t Accounts::descriptors_of(std::uint32_t number) const {
  const std::uint64_t closing = client_files.waiting(number);
  const auto at = uids.find(number);
  if (at == uids.end()) return closing;
  const Uid& uid = at->second;
  return uid.account.used(Resource::regions) + 2 * uid.account.used(Resource::sessions) + uid.doorbells +
         uid.account.used(Resource::gpu_descriptors) + uid.waiting + closing;
}

// With n users, each may have 1/(n + 1) of its descriptors and the free ones together. So the first user may have half,
// and no user ever has all. A granted descriptor is never taken back.
std::uint64_t Accounts::descriptor_share(std::uint32_t uid) const {
  if (host.private_mode() || uid == 0) return Account::kNoLimit;
  const auto own = host.config.limits.uid.find(uid);
  if (own != host.config.limits.uid.end() && own->second.descriptors) return *own->second.descriptors;
  if (host.config.limits.uid_descriptors != 0) return host.config.limits.uid_descriptors;
  const std::uint64_t used = descriptors_of(uid);
  const std::uint64_t taken = descriptors() + host.config.descriptors_reserved;
  const std::uint64_t left = host.facts.descriptors_limit > taken ? host.facts.descriptors_limit - taken : 0;
  const std::uint64_t users = uids.size() - uids.count(0) + (uids.contains(uid) ? 0 : 1);
  return (left + used) / (users + 1);
}

std::optional<Shortage> Accounts::descriptor_shortage(std::uint32_t uid, std::uint64_t wanted, bool admin) const {
  if (!descriptors_left(wanted, admin)) {
    const std::uint64_t reserved = std::min(host.config.descriptors_reserved, host.facts.descriptors_limit);
    return Shortage{
        SHMBW_SLOT_DESCRIPTORS, SHMBW_SCOPE_HOST, 0, host.facts.descriptors_limit - reserved, descriptors(), wanted};
  }
  return admin ? std::nullopt : share_shortage(uid, wanted);
}

std::optional<Shortage> Accounts::share_shortage(std::uint32_t uid, std::uint64_t wanted) const {
  const std::uint64_t share = descriptor_share(uid);
  const std::uint64_t used = descriptors_of(uid);
  if (used <= share && wanted <= share - used) return std::nullopt;
  return Shortage{SHMBW_SLOT_DESCRIPTORS, SHMBW_SCOPE_UID, uid, share, used, wanted};
}

bool Accounts::may_wait(std::uint32_t uid, std::uint64_t lent) const {
  return descriptors_left(lent + SHMBW_MAX_BATCH, false) && !share_shortage(uid, lent + SHMBW_MAX_BATCH);
}

bool Accounts::closes_too_many(std::uint32_t uid) const {
  const std::size_t waiting = client_files.waiting(uid);
  return waiting >= kClosesAtMost || (waiting > kClosesAlways && descriptor_shortage(uid, 1, false));
}

bool Accounts::keep_pidfd(std::uint32_t uid) {
  const auto at = uids.find(uid);
  const std::uint64_t kept = at == uids.end() ? 0 : at->second.pidfds;
  if (!descriptors_left(kept + 1, false) || share_shortage(uid, kept + 1)) return false;
  ++hold_uid(uid).pidfds;
  count_waiting(uid, 1);
  return true;
}

void Accounts::close_pidfd(std::uint32_t uid) {
  count_waiting(uid, -1);
  --uids.at(uid).pidfds;
  drop_uid(uid);
}

void Accounts::count_waiting(std::uint32_t uid, std::int64_t change) {
  open_descriptors += static_cast<std::uint64_t>(change);
  if (auto at = uids.find(uid); at != uids.end()) at->second.waiting += static_cast<std::uint64_t>(change);
}

bool Accounts::descriptors_left(std::uint64_t wanted, bool admin) const {
  std::uint64_t reserved = admin ? 0 : host.config.descriptors_reserved;
  return descriptors() + wanted + reserved <= host.facts.descriptors_limit;
}

}  // namespace shmb::daemon
