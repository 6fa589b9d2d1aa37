// SPDX-License-Identifier: Apache-2.0
// See hidden.hpp.
#include "tools/hidden.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/sys_process.hpp"
#include "tools/printable.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

std::string read(const std::string& path) {
  auto text = sys::read_file(path.c_str());
  return text ? std::move(*text) : std::string();
}

// The number behind "Uid:\t" of /proc/PID/status. A broker is not dumpable, so that its files belong to root.
std::uint32_t uid_of(const std::string& status) {
  std::uint32_t uid = 0;
  const std::size_t at = status.find("\nUid:\t");
  if (at != status.npos) std::from_chars(status.data() + at + 6, status.data() + status.size(), uid);
  return uid;
}

// The value after --directory, as the library starts private brokers. `words` are separated by NUL.
std::string directory_of(const std::string& words) {
  const std::string option = std::string("--directory") + '\0';
  const std::size_t at = words.find('\0' + option);
  return at == words.npos ? "" : std::string(words.c_str() + at + 1 + option.size());
}

bool is_private(const std::string& words) { return words.find(std::string("\0--system\0", 10)) == words.npos; }

}  // namespace

std::vector<OtherBroker> other_brokers(const std::string& proc) {
  std::vector<OtherBroker> found;
  if (::geteuid() != 0) return found;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(proc, failed)) {
    const std::string name = entry.path().filename();
    OtherBroker broker;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), broker.pid);
    if (wrong != std::errc{} || end != name.data() + name.size()) continue;
    if (read(entry.path() / "comm") != "shmbrokerd\n") continue;
    const std::string words = read(entry.path() / "cmdline");
    broker.uid = uid_of(read(entry.path() / "status"));
    if (broker.uid == 0 || words.empty() || !is_private(words)) continue;
    const std::string directory = directory_of(words);
    broker.socket = (directory.empty() ? "/tmp/shmbroker-" + std::to_string(broker.uid) : directory) + "/socket";
    found.push_back(std::move(broker));
  }
  std::ranges::sort(found, {}, &OtherBroker::pid);
  return found;
}

Hidden hidden_from(const BrokerStatus& status, std::uint64_t regions, bool all) {
  Hidden hidden;
  if (::geteuid() != 0) return hidden;
  if (!all && status.record.mode == SHMBW_MODE_SYSTEM && status.record.regions > regions)
    hidden.regions = status.record.regions - regions;
  hidden.brokers = other_brokers();
  std::erase_if(hidden.brokers, [&](const OtherBroker& each) { return each.pid == status.record.pid; });
  return hidden;
}

std::string brokers_text(const std::vector<OtherBroker>& brokers) {
  std::string out;
  for (const OtherBroker& broker : brokers)
    out += printable("not shown: the private broker of " + user_text(broker.uid) + ", pid " +
                     std::to_string(broker.pid) + " (--socket " + broker.socket + ")") +
           "\n";
  return out;
}

std::string hidden_text(const Hidden& hidden) {
  std::string out;
  if (hidden.regions != 0)
    out += "not shown: " + count_text(hidden.regions, "region") + " of other users (--all-groups)\n";
  return out + brokers_text(hidden.brokers);
}

Json hidden_json(const Hidden& hidden) {
  Json brokers = Json::array();
  for (const OtherBroker& broker : hidden.brokers)
    brokers.push_back({{"pid", broker.pid}, {"uid", broker.uid}, {"socket", broker.socket}});
  return Json{{"regions", hidden.regions}, {"private_brokers", std::move(brokers)}};
}

}  // namespace shmb::tools
