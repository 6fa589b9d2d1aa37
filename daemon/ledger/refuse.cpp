// SPDX-License-Identifier: Apache-2.0
// All sentences of the broker's own refusals, so that the same case always reads the same.
#include "daemon/ledger/refuse.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/sessions.hpp"
#include "daemon/ledger/views.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"

namespace shmb::daemon {
namespace {

std::string whose(Groups& groups, const Session& session, const Shortage& shortage) {
  switch (shortage.scope) {
    case SHMBW_SCOPE_UID:
      return "uid " + std::to_string(shortage.scope_id);
    case SHMBW_SCOPE_GROUP: {
      const Group* group = find_group(groups, shortage.scope_id);
      if (!group || !may_address(session, *group)) return "the group";
      return "group " + (group->name.empty() ? group->text() : "'" + group->name + "'");
    }
    case SHMBW_SCOPE_SESSION:
      return "this session";
    case SHMBW_SCOPE_WATCHED:
      return "what is to be watched";
    default:
      return "the host";
  }
}

bool is_short(const Account& account, const Shortage& shortage, std::uint64_t limit) {
  const std::uint64_t used = account.used(static_cast<Resource>(shortage.slot));
  return used > limit || shortage.asked > limit - used;
}
bool is_short(const Account& account, const Shortage& shortage) {
  return is_short(account, shortage, account.limit(static_cast<Resource>(shortage.slot)));
}

const Account* account_of(Groups& groups, const Session& session, const Shortage& shortage) {
  switch (shortage.scope) {
    case SHMBW_SCOPE_HOST:
      return &groups.accounts.all;
    case SHMBW_SCOPE_UID: {
      const auto at = groups.accounts.uids.find(static_cast<std::uint32_t>(shortage.scope_id));
      return at == groups.accounts.uids.end() ? nullptr : &at->second.account;
    }
    case SHMBW_SCOPE_GROUP: {
      const Group* group = find_group(groups, shortage.scope_id);
      return group ? &group->account : nullptr;
    }
    case SHMBW_SCOPE_SESSION:
      return shortage.scope_id == session.id ? &session.account : nullptr;
    default:
      return nullptr;
  }
}

// The size as a command takes it, rounded up.
std::string size_argument(std::uint64_t bytes) {
  constexpr std::uint64_t kilo = 1 << 10, mega = 1 << 20, giga = 1 << 30;
  const std::uint64_t unit = bytes < mega ? kilo : bytes < 64 * giga ? mega : giga;
  return std::to_string(bytes / unit + (bytes % unit != 0 ? 1 : 0)) + (unit == kilo ? "K" : unit == mega ? "M" : "G");
}

// The keys that have to be raised for the request to succeed. That need not be the limit that was met first. Wider
// scopes may be as full. A size that is not set follows that of the next wider scope, so raising it alone does not
// help.
class Keys {
 public:
  Keys(Groups& groups, const Session& session, const Shortage& shortage)
      : groups_(groups), session_(session), shortage_(shortage), slot_(slot_name(shortage.slot)) {
    const Account* const met = account_of(groups, session, shortage);
    for (const Account* at = met; at; at = at->parent())
      if (is_short(*at, shortage)) add(*at);
    if (keys_.empty() && !made_too_small_ && met) add(*met);  // room was made since
  }

  std::string text() const {
    if (shortage_.scope == SHMBW_SCOPE_WATCHED) return "raise limits.target_" + slot_;
    std::string out;
    for (const std::string& key : keys_) out += (out.empty() ? "raise " : " and ") + key;
    const bool of_file = std::ranges::any_of(keys_, [](const std::string& key) { return key.starts_with("limits."); });
    if (of_file) out += in_config(groups_.host);
    if (!made_too_small_) return out;
    const bool of_bytes = shortage_.slot == SHMBW_SLOT_BYTES;
    return (of_bytes ? limit_command() : "make a new group with a higher limit") + (out.empty() ? out : ", and " + out);
  }

 private:
  // A command that can be pasted. A user names its own groups, and a name may look like an option.
  std::string limit_command() const {
    const Group& group = *made_too_small_;
    const bool by_name = group.uid == session_.uid && !group.name.empty() && group.name.front() != '-';
    return "raise the group's limit: `shmbroker limit " + (by_name ? group.name : names::id_text(group.id)) + " " +
           size_argument(shortage_.used + shortage_.asked) + "` or more";
  }
  void add(const Account& account) {
    switch (account.scope()) {
      case SHMBW_SCOPE_GROUP:
        return add_group(account);
      case SHMBW_SCOPE_UID:
        return add_uid(account);
      case SHMBW_SCOPE_SESSION:
        return put("limits.session_" + slot_);
      default:
        return put(shortage_.slot == SHMBW_SLOT_TIMELINES ? "the kernel's vm.max_map_count" : "limits." + slot_);
    }
  }
  void add_group(const Account& account) {
    const Limits& limits = groups_.host.config.limits;
    const Group* group = find_group(groups_, account.id());
    const Resource resource = static_cast<Resource>(shortage_.slot);
    if (group && account.limit(resource) < group->configured(resource)) {
      made_too_small_ = group;
      if (!is_short(account, shortage_, group->configured(resource))) return;
    }
    const bool named = group && !group->name.empty() && may_address(session_, *group);
    const bool own = named && sets_bytes(limits.group, group->name);
    if (resource == Resource::bytes && limits.group_follows && !own && is_short(*account.parent(), shortage_)) return;
    put(named ? "limits.group." + group->name + "." + slot_ : "limits.group_" + slot_);
  }
  void add_uid(const Account& account) {
    const Limits& limits = groups_.host.config.limits;
    const bool own = sets_bytes(limits.uid, static_cast<std::uint32_t>(account.id()));
    const bool follows = shortage_.slot == SHMBW_SLOT_BYTES && limits.uid_follows && !own;
    if (follows && is_short(*account.parent(), shortage_)) return;
    put("limits.uid." + std::to_string(account.id()) + "." + slot_);
  }
  template <class Table, class Name>
  static bool sets_bytes(const Table& table, const Name& name) {
    const auto at = table.find(name);
    return at != table.end() && at->second.bytes;
  }
  void put(std::string key) { keys_.push_back(std::move(key)); }

  Groups& groups_;
  const Session& session_;
  const Shortage& shortage_;
  const std::string slot_;
  std::vector<std::string> keys_;
  const Group* made_too_small_ = nullptr;  // has a limit of its own, below the configured one, and it is met
};

// The largest of many. It looks only at their bytes: a table may be long, and a refusal must stay cheap.
template <class T>
class Largest {
 public:
  void offer(const T& what, std::uint64_t bytes) {
    for (Row& row : rows_) {
      if (bytes <= row.bytes) continue;
      std::move_backward(&row, rows_.end() - 1, rows_.end());
      row = {&what, bytes};
      return;
    }
  }
  template <class Name>
  std::string text(std::uint64_t used, Name name) const {
    std::string out;
    std::uint64_t named = 0;
    for (const Row& row : rows_) {
      if (!row.what) break;
      named += row.bytes;
      out += (out.empty() ? "" : ", ") + name(*row.what) + " (" + format_size(row.bytes) + ")";
    }
    if (named < used) out += (out.empty() ? "others (" : ", others (") + format_size(used - named) + ")";
    return out;
  }

 private:
  struct Row {
    const T* what = nullptr;
    std::uint64_t bytes = 0;
  };
  std::array<Row, 3> rows_;
};

// The three largest holders that the client may see, and the total of all others.
std::string find_holders(Groups& groups, const Session& session, const Shortage& shortage) {
  if (shortage.scope == SHMBW_SCOPE_GROUP) {
    const Group* group = find_group(groups, shortage.scope_id);
    if (!group || !may_address(session, *group)) return {};
    Largest<Region> largest;
    const bool gpu = shortage.slot == SHMBW_SLOT_GPU_BYTES;
    group->regions.each([&](const Region& region) {
      if (on_gpu(region) == gpu) largest.offer(region, region.bytes);
    });
    return largest.text(shortage.used, [](const Region& region) -> std::string {
      if (!region.live()) return "being freed";
      return region.name ? "'" + std::string(region.name->text) + "'" : "region " + std::to_string(region.id);
    });
  }
  Largest<Group> largest;
  for (const auto& [id, group] : groups.all)
    if ((shortage.scope != SHMBW_SCOPE_UID || group.uid == shortage.scope_id) && may_address(session, group))
      largest.offer(group, group.account.used(static_cast<Resource>(shortage.slot)));
  return largest.text(shortage.used, [](const Group& group) { return "group " + group.text(); });
}

// The remedy for a full table of tickets that needs no administrator.
std::string ticket_remedy(const Accounts& accounts, const Shortage& shortage) {
  if (shortage.scope == SHMBW_SCOPE_UID) {
    const auto at = accounts.uids.find(static_cast<std::uint32_t>(shortage.scope_id));
    const std::uint32_t left = at == accounts.uids.end() ? 0 : at->second.tickets_left;
    if (left != 0)
      return "`shmbroker release --tickets` ends the " + std::to_string(left) +
             " of them that were left by sessions that have ended, or ";
  }
  return "end tickets that nobody will use (shmb_ticket_revoke), or ";
}

// Found once per request: 253 refusals of one batch name the same holders.
const std::string& holders(Groups& groups, const Session& session, const Shortage& shortage) {
  Accounts::Holders& last = groups.accounts.holders;
  if (last.request != groups.accounts.requests || last.slot != shortage.slot || last.scope != shortage.scope ||
      last.scope_id != shortage.scope_id)
    last = {groups.accounts.requests, shortage.slot, shortage.scope, shortage.scope_id,
            find_holders(groups, session, shortage)};
  return last.text;
}

}  // namespace

// At most one line a minute for each table and kind of scope: a client that keeps asking must not fill the log.
constexpr std::int64_t kLogEvery = 60'000'000'000;

static void log_refusal(Groups& groups, const Session& session, const Shortage& shortage, const Error& refused) {
  auto [last, first] = groups.accounts.refusals_logged.try_emplace({shortage.slot, shortage.scope}, groups.host.now());
  if (!first && groups.host.now() - last->second < kLogEvery) return;
  last->second = groups.host.now();
  groups.host.log(5, "refused uid " + std::to_string(session.uid) + " pid " + std::to_string(session.pid) + ": " +
                         refused.sentence);
}

std::string in_config(const Host& host) {
  if (host.config.file.empty()) return {};
  return " in " + host.config.file + ", then kill -HUP " + std::to_string(host.facts.pid);
}

Error refuse_limit(Groups& groups, const Session& session, const Shortage& shortage) {
  std::string remedy = Keys(groups, session, shortage).text();
  if (shortage.slot == SHMBW_SLOT_TICKETS) remedy.insert(0, ticket_remedy(groups.accounts, shortage));
  Error refused = wire::limit_refusal(shortage, whose(groups, session, shortage), remedy,
                                      shortage.slot == SHMBW_SLOT_BYTES || shortage.slot == SHMBW_SLOT_GPU_BYTES
                                          ? holders(groups, session, shortage)
                                          : "");
  log_refusal(groups, session, shortage, refused);
  return refused;
}

Error refuse_create_rate(Groups& groups, const Session& session, const Shortage& shortage) {
  const Host& host = groups.host;
  std::string remedy =
      "ask again a moment later, or raise limits.uid." + std::to_string(shortage.scope_id) + ".creates";
  remedy += in_config(host);
  Error refused = wire::limit_refusal(shortage, whose(groups, session, shortage), remedy);
  log_refusal(groups, session, shortage, refused);
  return refused;
}

// Tells how to make the broker's table larger. Its size is fixed when the broker starts.
static std::string larger_table(const Host& host) {
  const std::string pid = "pid " + std::to_string(host.facts.pid);
  const std::string& file = host.config.file;
  if (host.private_mode() && host.config.descriptors == 0)
    return "close regions that are not in use; or raise the hard limit of open files (ulimit -Hn) in the shell that "
           "starts the broker, and end " +
           pid + " with all that it holds: the next program starts another";
  return "raise descriptors" + (file.empty() ? "" : " in " + file) +
         " (and the hard RLIMIT_NOFILE of the broker), then restart " + pid;
}

Error refuse_descriptors(Host& host, const Shortage& shortage) {
  if (shortage.scope != SHMBW_SCOPE_UID) return wire::limit_refusal(shortage, "the broker", larger_table(host));
  const std::string uid = std::to_string(shortage.scope_id);
  std::string remedy = "raise limits.uid." + uid + ".descriptors";
  if (host.config.limits.uid_descriptors == 0 &&
      !host.config.limits.uid.contains(static_cast<std::uint32_t>(shortage.scope_id)))
    remedy += " or descriptors (and the hard RLIMIT_NOFILE of the broker), of which this is the user's share";
  return wire::limit_refusal(shortage, "uid " + uid, remedy);
}

static std::optional<std::uint32_t> other_owner(const Session& session, std::uint32_t owner) {
  return owner == session.uid ? std::nullopt : std::optional(owner);
}

Error no_such_region(std::uint64_t id) { return wire::not_found({.id = id}); }

namespace {

bool has(const Group& group, bool pool, std::string_view name) {
  return pool ? group.pool_names.contains(name) : group.names.find(name) != nullptr;
}

// The address of what the client may have meant, in the youngest groups of its user. Bounded, so that repeated requests
// for a missing name stay cheap.
std::string elsewhere(Groups& groups, const Session& session, const Group* not_in, bool pool, std::string_view name) {
  constexpr int kLooks = 256;
  int looks = 0;
  for (auto at = groups.all.rbegin(); at != groups.all.rend() && looks < kLooks; ++at, ++looks) {
    const Group& group = at->second;
    if (&group == not_in || group.closed || group.uid != session.uid || !has(group, pool, name)) continue;
    return group.text() + "/" + std::string(name);
  }
  return {};
}

}  // namespace

Error no_such_name(Groups& groups, Session& session, std::string_view what, std::uint32_t owner, std::string_view group,
                   std::string_view name) {
  const bool pool = what == "pool";
  const Group* const looked_in = addressed_group(groups, session, owner, group);
  const std::string there = elsewhere(groups, session, looked_in, pool, name);
  wire::Sought sought{.what = what, .name = name, .elsewhere = there};
  if (looked_in && has(*looked_in, !pool, name)) sought.other_kind = pool ? "region" : "pool";
  const std::string own = group.empty() && session.group ? session.group->text() : std::string();
  if (!group.empty()) {
    sought.group = group;
    sought.owner_uid = other_owner(session, owner);
  } else if (session.group) {
    sought.group = own;
    sought.owner_uid = other_owner(session, session.group->uid);
  }
  return wire::not_found(sought);
}
Error no_such_group(std::uint64_t id) { return wire::not_found({.what = "group", .id = id}); }
Error no_such_group(const Session& session, std::uint32_t owner, std::string_view text) {
  return wire::not_found({.what = "group", .name = text, .owner_uid = other_owner(session, owner)});
}
Error no_lease(std::uint64_t region) {
  return plain(Status::not_found,
               "no region " + std::to_string(region) + " that this session holds a lease on: attach it first");
}
Error no_such_ticket() {
  return plain(Status::not_found, "no such ticket: it is unknown, used up or expired; ask its maker for a new one");
}
Error stale_region(std::uint64_t id, std::uint32_t asked, std::uint32_t now) {
  return plain(Status::stale, "region " + std::to_string(id) + " is of generation " + std::to_string(now) + ", not " +
                                  std::to_string(asked) + ": list again");
}

}  // namespace shmb::daemon
