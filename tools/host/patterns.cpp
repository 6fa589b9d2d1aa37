// SPDX-License-Identifier: Apache-2.0
// See patterns.hpp.
#include "tools/host/patterns.hpp"

#include <charconv>
#include <cstdlib>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "base/toml.hpp"

namespace shmb::host {
namespace {

constexpr std::string_view kPid = "{pid}";
constexpr std::string_view kCompiledIn =
#include <patterns.inc>  // patterns.toml as a raw string, made by embed.py
    ;

std::string user_file() {
  const char* folder = std::getenv("XDG_CONFIG_HOME");
  if (folder != nullptr && *folder == '/') return std::string(folder) + "/shmbroker/patterns.toml";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.config/shmbroker/patterns.toml" : "";
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view text, std::optional<pid_t>& creator) {
  while (!glob.empty()) {
    if (glob.front() == '*') {
      glob.remove_prefix(1);
      for (std::size_t skip = 0; skip <= text.size(); ++skip) {
        if (glob_matches(glob, text.substr(skip), creator)) return true;
        if (skip < text.size() && text[skip] == '/') return false;
      }
      return false;
    }
    if (glob.starts_with(kPid)) {
      pid_t pid = 0;
      const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), pid);
      if (bad != std::errc() || pid <= 0) return false;
      glob.remove_prefix(kPid.size());
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      creator = pid;
      continue;
    }
    if (text.empty() || (glob.front() == '?' ? text.front() == '/' : glob.front() != text.front())) return false;
    glob.remove_prefix(1);
    text.remove_prefix(1);
  }
  return text.empty();
}

Result<Patterns> Patterns::parse(std::string_view text, const std::string& file) {
  const auto wrong = [&](const toml::source_position& at, const std::string& why) {
    return error(Status::invalid, file + ":" + std::to_string(at.line) + ": " + why);
  };
  SHMB_TRY(table, parse_toml(text, file));
  Patterns out;
  const toml::array* list = table["pattern"].as_array();
  if (list == nullptr && !table.empty()) return wrong(table.source().begin, "expected [[pattern]]");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const toml::table* entry = list->get(i)->as_table();
    if (entry == nullptr) return wrong(list->get(i)->source().begin, "a pattern is a table");
    Pattern pattern;
    for (const auto& [key, value] : *entry) {
      const std::string_view name = key.str();
      if (name == "program" && value.is_string()) pattern.program = **value.as_string();
      else if (name == "glob" && value.is_string()) pattern.glob = **value.as_string();
      else if (name == "keep" && value.is_boolean()) pattern.keep = **value.as_boolean();
      else if (name == "where" && value.is_string() &&
               (**value.as_string() == "shm" || **value.as_string() == "hugetlb"))
        pattern.hugetlb = **value.as_string() == "hugetlb";
      else
        return wrong(value.source().begin, shmb::quoted(name) +
                                               " is no key of a pattern, or its value is not of its kind: " +
                                               "program, glob, where (\"shm\" or \"hugetlb\"), keep (true or false)");
    }
    if (pattern.program.empty() || pattern.glob.empty())
      return wrong(entry->source().begin, "a pattern needs program and glob");
    out.patterns_.push_back(std::move(pattern));
  }
  return out;
}

Result<Patterns> Patterns::load(std::vector<std::string>& notes) {
  Patterns all;
  for (const std::string& file : {user_file(), std::string("/etc/shmbroker/patterns.toml")}) {
    if (file.empty()) continue;
    auto text = sys::read_file(file.c_str());
    if (!text && (text.error().value == ENOENT || text.error().value == ENOTDIR)) continue;
    if (!text && text.error().value == EACCES) {
      notes.push_back("the patterns in " + file + " may not be read and are left out");
      continue;
    }
    if (!text) return system_failure(text.error(), "read " + file);
    auto parsed = parse(*text, file);
    if (!parsed) return parsed;
    all.append(std::move(*parsed));
  }
  auto own = parse(kCompiledIn, "the built-in patterns");
  if (!own) return own;
  all.append(std::move(*own));
  return all;
}

void Patterns::append(Patterns&& later) {
  for (Pattern& pattern : later.patterns_) patterns_.push_back(std::move(pattern));
}

std::vector<Patterns::Match> Patterns::matches(const Object& object) const {
  std::vector<Match> out;
  if (object.kind != Kind::file && object.kind != Kind::semaphore && object.kind != Kind::hugetlb) return out;
  for (const std::string& name : object.names)
    for (const Pattern& pattern : patterns_) {
      std::optional<pid_t> creator;
      if (pattern.hugetlb != (object.kind == Kind::hugetlb) || !glob_matches(pattern.glob, name, creator)) continue;
      out.push_back({&pattern, creator});
      break;
    }
  return out;
}

}  // namespace shmb::host
