// SPDX-License-Identifier: Apache-2.0
// The configuration file. Every key is in one of the tables below. So an unknown key is refused with its line, and the
// documentation, the parser and --check cannot differ.
#include "daemon/start/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "base/toml.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {
namespace {

using Set = std::function<Result<void>(Config&, const toml::node&)>;
using Differ = std::function<bool(const Config&, const Config&)>;

struct Key {
  std::string_view name;
  Set set;
  Differ differ = nullptr;  // of a key outside of [limits]
};

template <class T>
Differ differ_in(T Config::* field) {
  return [field](const Config& one, const Config& other) { return one.*field != other.*field; };
}

std::uint64_t host_memory() {
  auto pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

std::unexpected<Error> wrong(std::string sentence) { return error(Status::invalid, std::move(sentence)); }

Result<std::string> text_of(const toml::node& node, const char* allowed) {
  if (auto text = node.value_exact<std::string>()) return *text;
  return wrong(std::string("expects ") + allowed + " in quotes");
}

Result<std::uint64_t> count_of(const toml::node& node, std::uint64_t least, std::uint64_t most) {
  auto number = node.value_exact<std::int64_t>();
  if (number && *number >= 0 && static_cast<std::uint64_t>(*number) >= least &&
      static_cast<std::uint64_t>(*number) <= most)
    return static_cast<std::uint64_t>(*number);
  return wrong("expects a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<std::uint64_t> bytes_of(const toml::node& node) {
  if (auto number = node.value_exact<std::int64_t>()) {
    if (*number > 0) return static_cast<std::uint64_t>(*number);
    return wrong("expects more than 0 bytes");
  }
  SHMB_TRY(text, text_of(node, "a size like \"8G\" or a share of the host's memory like \"50%\""));
  auto bytes = parse_size_or_percent(text, host_memory());
  if (bytes && *bytes == 0) return wrong("expects more than 0 bytes");
  return bytes;
}

// A hundred years: with the time of day added it still fits in 64 bits of nanoseconds.
constexpr std::int64_t kLongest = 36'500LL * 24 * 3600 * 1'000'000'000;

Result<std::int64_t> duration_of(const toml::node& node, bool endless) {
  SHMB_TRY(text, text_of(node, "a duration like \"10s\""));
  auto duration = parse_duration(text);
  if (duration && *duration < 0 && !endless) return wrong("expects a limited duration like \"10s\"");
  if (duration && *duration > kLongest) return wrong("expects at most \"36500d\"");
  return duration;
}

template <class T>
Result<void> store(Result<T> value, T& into) {
  if (!value) return std::unexpected(std::move(value.error()));
  into = *value;
  return {};
}

constexpr std::uint64_t kMany = 1ULL << 40;

Key bytes_key(std::string_view name, std::uint64_t Limits::* field) {
  return {name,
          [field](Config& config, const toml::node& node) { return store(bytes_of(node), config.limits.*field); }};
}
Key count_key(std::string_view name, std::uint64_t Limits::* field, std::uint64_t least = 0) {
  return {name, [field, least](Config& config, const toml::node& node) {
            return store(count_of(node, least, kMany), config.limits.*field);
          }};
}
Key duration_key(std::string_view name, std::int64_t Limits::* field) {
  return {name, [field](Config& config, const toml::node& node) {
            return store(duration_of(node, false), config.limits.*field);
          }};
}
Key count_key(std::string_view name, std::uint64_t Config::* field, std::uint64_t most) {
  return {
      name,
      [field, most](Config& config, const toml::node& node) { return store(count_of(node, 0, most), config.*field); },
      differ_in(field)};
}
Key duration_key(std::string_view name, std::int64_t Config::* field, bool endless) {
  return {name,
          [field, endless](Config& config, const toml::node& node) -> Result<void> {
            auto duration = duration_of(node, endless);
            if (duration && *duration == 0) return wrong("expects more than 0");
            return store(std::move(duration), config.*field);
          },
          differ_in(field)};
}

Result<void> set_engine(Config& config, const toml::node& node) {
  constexpr auto allowed = "one of \"auto\", \"io_uring\", \"epoll\"";
  auto text = text_of(node, allowed);
  auto choice = text ? parse_engine(*text) : std::nullopt;
  if (!choice) return wrong(std::string("expects ") + allowed);
  config.engine = *choice;
  return {};
}

Result<void> set_log_level(Config& config, const toml::node& node) {
  constexpr auto allowed = "one of \"error\", \"warning\", \"notice\", \"info\", \"debug\"";
  auto text = text_of(node, allowed);
  auto level = text ? parse_log_level(*text) : std::nullopt;
  if (!level) return wrong(std::string("expects ") + allowed);
  config.log_priority = *level;
  return {};
}

Result<void> set_gpu_hold(Config& config, const toml::node& node) {
  constexpr auto allowed = "one of \"node\", \"trust\"";
  auto text = text_of(node, allowed);
  if (!text || (*text != "node" && *text != "trust")) return wrong(std::string("expects ") + allowed);
  config.gpu_trust = *text == "trust";
  return {};
}

Result<void> set_keep(Config& config, const toml::node& node) {
  auto value = node.value_exact<bool>();
  if (!value) return wrong("expects true or false");
  config.keep = *value;
  return {};
}

Result<void> set_socket_mode(Config& config, const toml::node& node) {
  constexpr auto allowed = "an octal mode like \"0666\" or \"0660\"";
  auto text = text_of(node, allowed);
  unsigned mode = 0;
  if (!text) return std::unexpected(text.error());
  auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), mode, 8);
  if (text->empty() || failure != std::errc{} || end != text->data() + text->size() || mode > 0777)
    return wrong(std::string("expects ") + allowed);
  // connect(2) needs write permission alone. The owner always needs it, because the broker's own tools connect as the
  // owner.
  if ((mode & 0600) != 0600) return wrong("expects a mode that lets the owner in, like \"0660\"");
  config.socket_mode = mode;
  return {};
}

Result<void> set_user(Config& config, const toml::node& node) {
  if (auto number = node.value_exact<std::int64_t>(); number && *number >= 0 && *number < 0xffff'ffffLL) {
    config.user = std::to_string(*number);
    return {};
  }
  SHMB_TRY(text, text_of(node, "a user name or number"));
  if (text.empty()) return wrong("expects a user name or number");
  config.user = text;
  return {};
}

const std::vector<Key>& top_keys() {
  static const std::vector<Key> keys = {
      {"engine", set_engine, differ_in(&Config::engine)},
      {"gpu_hold", set_gpu_hold, differ_in(&Config::gpu_trust)},
      {"keep", set_keep, differ_in(&Config::keep)},
      {"log_level", set_log_level, differ_in(&Config::log_priority)},
      {"socket_mode", set_socket_mode, differ_in(&Config::socket_mode)},
      {"user", set_user, differ_in(&Config::user)},
      count_key("descriptors", &Config::descriptors, 1ULL << 30),
      count_key("descriptors_reserved", &Config::descriptors_reserved, 1ULL << 20),
      duration_key("hello_timeout", &Config::hello_timeout, false),
      duration_key("unread_timeout", &Config::unread_timeout, false),
      duration_key("idle_exit", &Config::idle_exit, true),
  };
  return keys;
}

const std::vector<Key>& limit_keys() {
  static const std::vector<Key> keys = {
      bytes_key("bytes", &Limits::host_bytes),
      bytes_key("uid_bytes", &Limits::uid_bytes),
      bytes_key("group_bytes", &Limits::group_bytes),
      bytes_key("shelf_bytes", &Limits::shelf_bytes),
      count_key("group_regions", &Limits::group_regions),
      count_key("uid_regions", &Limits::uid_regions),
      count_key("uid_leases", &Limits::uid_leases),
      count_key("uid_sessions", &Limits::uid_sessions),
      count_key("uid_creates", &Limits::uid_creates),
      count_key("uid_groups", &Limits::uid_groups),
      count_key("uid_tickets", &Limits::uid_tickets),
      count_key("session_tickets", &Limits::session_tickets),
      count_key("uid_descriptors", &Limits::uid_descriptors),
      count_key("uid_names", &Limits::uid_names),
      count_key("uid_watches", &Limits::uid_watches),
      count_key("uid_worlds", &Limits::uid_worlds),
      count_key("uid_references", &Limits::uid_references),
      bytes_key("gpu_bytes", &Limits::gpu_bytes),
      bytes_key("uid_gpu_bytes", &Limits::uid_gpu_bytes),
      bytes_key("group_gpu_bytes", &Limits::group_gpu_bytes),
      count_key("uid_gpu_descriptors", &Limits::uid_gpu_descriptors),
      count_key("uid_timelines", &Limits::uid_timelines),
      count_key("session_leases", &Limits::session_leases),
      count_key("session_watches", &Limits::session_watches),
      count_key("target_watches", &Limits::target_watches),
      count_key("events_queued", &Limits::events_queued, 1),
      duration_key("keep_max", &Limits::keep_max),
      duration_key("ticket_default", &Limits::ticket_default),
      duration_key("ticket_max", &Limits::ticket_max),
      duration_key("shelf_idle", &Limits::shelf_idle),
  };
  return keys;
}

using Field = std::optional<std::uint64_t> LimitOverride::*;
struct OverrideKey {
  std::string_view name;
  Field field;
  bool for_groups;  // else of uids only: sessions, groups, ... are counted per uid
};
constexpr std::array kOverrideKeys = {
    OverrideKey{"bytes", &LimitOverride::bytes, true},
    OverrideKey{"regions", &LimitOverride::regions, true},
    OverrideKey{"leases", &LimitOverride::leases, false},
    OverrideKey{"sessions", &LimitOverride::sessions, false},
    OverrideKey{"groups", &LimitOverride::groups, false},
    OverrideKey{"tickets", &LimitOverride::tickets, false},
    OverrideKey{"names", &LimitOverride::names, false},
    OverrideKey{"watches", &LimitOverride::watches, false},
    OverrideKey{"gpu_bytes", &LimitOverride::gpu_bytes, true},
    OverrideKey{"gpu_descriptors", &LimitOverride::gpu_descriptors, true},
    OverrideKey{"worlds", &LimitOverride::worlds, false},
    OverrideKey{"references", &LimitOverride::references, false},
    OverrideKey{"timelines", &LimitOverride::timelines, false},
    OverrideKey{"descriptors", &LimitOverride::descriptors, false},
    OverrideKey{"creates", &LimitOverride::creates, false},
};

class Reader {
 public:
  Reader(const std::string& path, Config& config) : path_(path), config_(config) {}

  Result<void> top(const toml::table& table) {
    for (auto&& [key, node] : table) {
      if (key.str() == "limits") {
        auto* limits = node.as_table();
        if (limits == nullptr) return at(key, "'limits' is a table: write [limits]");
        if (auto read = this->limits(*limits); !read) return read;
      } else if (key.str() == "public") {
        auto* names = node.as_table();
        if (names == nullptr) return at(key, kPublicForm);
        for (auto&& [name, rule] : *names)
          if (auto read = public_name(name, rule); !read) return read;
      } else if (auto read = one(top_keys(), "", key, node); !read) {
        return read;
      }
    }
    return {};
  }

 private:
  static constexpr const char* kPublicForm =
      "write [public.\"UID:GROUP/NAME\"], for example [public.\"1000:serve/weights\"]";

  Result<void> public_name(const toml::key& name, const toml::node& node) {
    const std::string text(name.str());
    const auto address = names::parse_region(text);
    if (!address || !address->owner_uid || address->group.empty() || names::is_group_id(address->group))
      return at(name, quoted(text) + " names no region of a user: " + kPublicForm);
    auto* table = node.as_table();
    if (table == nullptr) return at(name, kPublicForm);
    PublicName rule;
    for (auto&& [key, value] : *table) {
      const bool uids = key.str() == "uids";
      if (!uids && key.str() != "gids")
        return at(key, "unknown key '" + std::string(key.str()) + "': a public name has uids and gids");
      auto* list = value.as_array();
      if (list == nullptr) return at(key, "'" + std::string(key.str()) + "' expects numbers in brackets, like [1001]");
      for (auto&& element : *list) {
        auto id = count_of(element, 0, 0xffff'fffeULL);
        if (!id) return at(key, "'" + std::string(key.str()) + "' " + id.error().sentence);
        (uids ? rule.uids : rule.gids).push_back(static_cast<std::uint32_t>(*id));
      }
    }
    if (rule.uids.empty() && rule.gids.empty())
      return at(name, "the public name " + quoted(text) + " is open to no user: give uids or gids");
    config_.limits.public_names[public_key(*address->owner_uid, address->group, address->name)] = std::move(rule);
    return {};
  }

  Result<void> limits(const toml::table& table) {
    for (auto&& [key, node] : table) {
      if (key.str() != "uid" && key.str() != "group") {
        if (auto read = one(limit_keys(), "limits.", key, node); !read) return read;
        continue;
      }
      bool groups = key.str() == "group";
      auto* scopes = node.as_table();
      if (scopes == nullptr)
        return at(key,
                  groups ? "write [limits.group.NAME]" : "write [limits.uid.NUMBER], for example [limits.uid.1000]");
      for (auto&& [name, scope] : *scopes)
        if (auto read = override_of(groups, name, scope); !read) return read;
    }
    return {};
  }

  Result<void> override_of(bool groups, const toml::key& name, const toml::node& scope) {
    std::string text(name.str());
    LimitOverride* into = nullptr;
    if (groups) {
      if (auto good = names::check(text, "group name"); !good) return at(name, good.error().sentence);
      into = &config_.limits.group[text];
    } else {
      std::uint32_t uid = 0;
      auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), uid);
      if (failure != std::errc{} || end != text.data() + text.size())
        return at(name, quoted(text) + " is no uid: write a number, for example [limits.uid.1000]");
      into = &config_.limits.uid[uid];
    }
    std::string where = std::string(groups ? "limits.group." : "limits.uid.") + text;
    auto* table = scope.as_table();
    if (table == nullptr) return at(name, "'" + where + "' is a table: write [" + where + "]");
    for (auto&& [key, node] : *table) {
      auto known = std::find_if(kOverrideKeys.begin(), kOverrideKeys.end(),
                                [&](auto& entry) { return entry.name == key.str(); });
      if (known == kOverrideKeys.end() || (groups && !known->for_groups))
        return at(key, "unknown key '" + where + "." + std::string(key.str()) + "'");
      auto value = known->name.ends_with("bytes") ? bytes_of(node) : count_of(node, 0, kMany);
      if (!value) return at(key, "'" + where + "." + std::string(key.str()) + "' " + value.error().sentence);
      into->*(known->field) = *value;
    }
    return {};
  }

  Result<void> one(const std::vector<Key>& keys, std::string_view prefix, const toml::key& key,
                   const toml::node& node) {
    std::string full = std::string(prefix) + std::string(key.str());
    auto known = std::find_if(keys.begin(), keys.end(), [&](const Key& entry) { return entry.name == key.str(); });
    if (known == keys.end()) return at(key, "unknown key '" + full + "'");
    auto done = known->set(config_, node);
    if (!done) return at(key, "'" + full + "' " + done.error().sentence);
    return {};
  }

  std::unexpected<Error> at(const toml::key& key, const std::string& sentence) {
    return wrong(path_ + ":" + std::to_string(key.source().begin.line) + ": " + sentence);
  }

  const std::string& path_;
  Config& config_;
};

}  // namespace

std::optional<EngineChoice> parse_engine(std::string_view text) {
  if (text == "auto") return EngineChoice::automatic;
  if (text == "io_uring") return EngineChoice::io_uring;
  if (text == "epoll") return EngineChoice::epoll;
  return std::nullopt;
}

std::optional<int> parse_log_level(std::string_view text) {
  constexpr std::pair<std::string_view, int> kLevels[] = {
      {"error", 3}, {"warning", 4}, {"notice", 5}, {"info", 6}, {"debug", 7}};
  for (auto [name, level] : kLevels)
    if (name == text) return level;
  return std::nullopt;
}

Result<Config> parse_config(const std::string& text, const std::string& path, Config defaults) {
  SHMB_TRY(table, parse_toml(text, path));
  Config config = std::move(defaults);
  SHMB_TRY_VOID(Reader(path, config).top(table));
  complete_limits(config.limits);
  return config;
}

Result<Config> load_config(const std::string& path, Config defaults) {
  auto text = sys::read_file(path.c_str());
  if (!text) return system_failure(text.error(), "configuration file " + quoted(path));
  return parse_config(*text, path, std::move(defaults));
}

std::vector<std::string> keys_that_differ(const Config& one, const Config& other) {
  std::vector<std::string> names;
  for (const Key& key : top_keys())
    if (key.differ(one, other)) names.emplace_back(key.name);
  return names;
}

std::string public_key(std::uint32_t owner, std::string_view group, std::string_view name) {
  return std::to_string(owner) + ":" + std::string(group) + "/" + std::string(name);
}

void complete_limits(Limits& limits) {
  if (limits.host_bytes == 0) limits.host_bytes = host_memory() / 2;
  if (limits.uid_bytes == 0) {
    limits.uid_bytes = limits.host_bytes;
    limits.uid_follows = true;
  }
  if (limits.group_bytes == 0) {
    limits.group_bytes = limits.uid_bytes;
    limits.group_follows = true;
  }
}

}  // namespace shmb::daemon
